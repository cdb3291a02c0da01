"""The IBM MQ part of a gateway: a follower of its log and an uplink, each in a thread."""

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headwater_host.exits import CommandError
from headwater_host.gateway.mq import Follower, local_queue
from headwater_host.gateway.mq_config import MqConfig
from headwater_host.mq.errors import MQMIError
from headwater_host.mq.uplink import mqi
from headwater_host.mq.uplink.uplink import Uplink
from headwater_mq.forward import Forward

# Time to wait for threads at the end, in s. An MQI call cannot be interrupted, and leaving one loses nothing.
_END_S = 5.0


class UplinkThread:
    """The uplink of a local queue, in a thread.

    Raises CommandError if IBM's client is missing, the file is unusable, or another uplink has the queue.
    """

    def __init__(self, config: MqConfig):
        assert config.uplink is not None
        mqi.load()
        self._lock = _Lock(config.file, "uplink", "another uplink sends what is in")
        try:
            self._forward = Forward(config.file, local_queue(config))
        except MQMIError as error:
            self._lock.close()
            raise CommandError(f"the local queue: {error.detail or error}") from error
        self.uplink = Uplink(config.uplink, self._forward)
        # Daemon, so that a call that never returns does not keep the process.
        self.thread = threading.Thread(target=self._run, name="uplink", daemon=True)
        #: The exception that ended it.
        self.failure: Exception | None = None

    def _run(self) -> None:
        try:
            self.uplink.run()
        except Exception as error:
            self.failure = error
            self.uplink.failed(error)
        finally:
            self.close()

    def begin_again(self) -> None:
        """Forget the record of the last commit, before the start."""
        self._forward.begin_again()

    def close(self) -> None:
        """Close the queue file. A second call does nothing."""
        self._forward.close()
        self._lock.close()


class _Lock:
    """An exclusive lock beside a file, until the process ends. ``other`` is the error text if it is taken."""

    def __init__(self, file: Path, kind: str, other: str):
        # Every path to the file must lead to the same lock.
        path = f"{os.path.realpath(file)}-{kind}"
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError as error:
            raise CommandError(
                f"the local queue: {file} cannot be opened: there is no folder {file.parent}"
            ) from error
        except OSError as error:
            raise CommandError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise CommandError(f"{other} {file}") from error

    def close(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MqService:
    """The follower and the uplink of a gateway. Raises CommandError."""

    def __init__(
        self, config: MqConfig, directory: Path, durable: Callable[[], int], *, group_readable: bool = False
    ):
        # The file has one position in the log.
        self._lock = _Lock(config.file, "gateway", "another gateway fills the queue in")
        try:
            self._follower = Follower(config, directory, durable, group_readable=group_readable)
        except MQMIError as error:
            self._lock.close()
            raise CommandError(f"the local queue: {error.detail or error}") from error
        self._uplink: UplinkThread | None = None
        self._threads = [threading.Thread(target=self._follower.run, name="mq", daemon=True)]
        if config.uplink is not None:
            try:
                self._uplink = UplinkThread(config)
            except CommandError:
                self._follower.close()
                self._lock.close()
                raise
            self._threads.append(self._uplink.thread)

    @property
    def position(self) -> int:
        """The number of the first block of the log that is not completely in the queue."""
        return self._follower.position

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    async def stop(self) -> None:
        """Stop the threads. The next start continues with what is in the log and the queue."""
        self._follower.stop()
        if self._uplink is not None:
            self._uplink.uplink.stop()
        for thread in self._threads:
            if thread.ident is not None:
                await asyncio.to_thread(thread.join, _END_S)
        if not self._threads[0].is_alive():
            self._follower.close()
            self._lock.close()
        if self._uplink is not None and not self._uplink.thread.is_alive():
            self._uplink.close()

    def states(self) -> Iterator[tuple[str, str]]:
        """Yield names and states for the log."""
        yield "mq", self._follower.state
        if self._uplink is not None:
            yield "mq uplink", self._uplink.uplink.state

    def status(self) -> dict[str, Any]:
        """Return the statistics for JSON."""
        uplink = None if self._uplink is None else self._uplink.uplink.status()
        return self._follower.status() | {"uplink": uplink}
