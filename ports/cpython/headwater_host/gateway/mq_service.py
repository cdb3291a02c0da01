"""What goes to IBM MQ, as a part of a gateway: a follower of its log, and an uplink, each in a thread of its own."""

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

# How long the end may take: a call of the MQI cannot be cut short, and nothing is lost by leaving one.
_END_S = 5.0


class UplinkThread:
    """An uplink of a local queue, the only one that it has. Raises CommandError: IBM's client is not there, the file
    cannot be used, or another uplink has the queue."""

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
        # A call that never returns must not keep the process.
        self.thread = threading.Thread(target=self._run, name="uplink", daemon=True)
        #: What ended it, if anything did.
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
        """Before it starts: forget the record of what was committed."""
        self._forward.begin_again()

    def close(self) -> None:
        """Give the file back; twice is harmless."""
        self._forward.close()
        self._lock.close()


class _Lock:
    """Be the only one of a kind for a file; ``other`` says that there is one. The lock is gone with the process."""

    def __init__(self, file: Path, kind: str, other: str):
        # Whatever name the file is given by.
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
        """Let others; twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MqService:
    """Raises CommandError as ``UplinkThread`` does."""

    def __init__(
        self,
        config: MqConfig,
        directory: Path,
        durable: Callable[[], int],
        *,
        group_readable: bool = False,
    ):
        # The place in the log stands in the file once.
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

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    async def stop(self) -> None:
        """End in good order; what has not come through is in the log, or in the queue, for the next start."""
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
        """Names and states, for a line of the log."""
        yield "mq", self._follower.state
        if self._uplink is not None:
            yield "mq uplink", self._uplink.uplink.state

    def status(self) -> dict[str, Any]:
        """What is known, as JSON can hold it."""
        uplink = None if self._uplink is None else self._uplink.uplink.status()
        return self._follower.status() | {"uplink": uplink}
