"""Run a broker on a free loopback port, for tests and for the demo.

`start_broker(directory)` starts mosquitto if it is installed, otherwise amqtt in a process. When the call returns,
the broker accepts connections. It can be stopped, killed and restarted on the same port.
"""

import asyncio
import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tools import toolchain

HOST = "127.0.0.1"
START_S = 15.0
STOP_S = 5.0
_PORT_TRIES = 5


class BrokerError(Exception):
    """The broker could not be started; the text has the end of its log."""


def free_port() -> int:
    """Return a TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


_Self = TypeVar("_Self", bound="Broker")


class Broker:
    """A broker process; subclasses define how to start it.

    `directory` has its files and `broker.log`. `port` stays the same over `restart`.
    """

    name = ""
    #: Seconds that it may take to start and to stop.
    start_s = START_S
    stop_s = STOP_S
    #: Text in its log if another process has its port.
    port_taken = "ddress already in use"

    def __init__(self, directory: Path, port: int | None = None) -> None:
        """Create the broker. Without `port`, the first `start` finds a free one."""
        self.directory = directory
        self.host = HOST
        self.port = port or 0
        self.log = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Return the command line that serves `self.port`. Called before each start."""
        raise AssertionError("subclasses define the command")

    def environment(self) -> dict[str, str] | None:
        """Return its environment, or None for that of this process."""
        return None

    def user(self) -> "pwd.struct_passwd | None":
        """Return the user to run as, or None for the current one."""
        return None

    def working_directory(self) -> Path:
        """Return the directory in which it is started."""
        return toolchain.ROOT

    def accepts(self) -> bool:
        """Return whether it accepts connections."""
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int:
        """Return the process id, or 0 if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def pids(self) -> list[int]:
        """Return the process ids of all servers that belong to it."""
        return [self.pid] if self.pid else []

    def start(self) -> None:
        """Start and wait until connections are accepted. Raises BrokerError if that fails."""
        if self.pid:
            raise BrokerError(f"{self.name} already runs on port {self.port}")
        self.directory.mkdir(parents=True, exist_ok=True)
        found = self.port == 0
        for _ in range(_PORT_TRIES if found else 1):
            if found:
                self.port = free_port()
            if self._serve():
                return
            # Another process may take the free port before the broker does.
            if self.port_taken not in self.log_text():
                break
        raise BrokerError(f"{self.name} did not start on port {self.port}:\n{self.log_text()[-2000:]}")

    def _serve(self) -> bool:
        command = self.command()
        user = self.user()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.working_directory(),
                env=self.environment(),
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )
        deadline = time.monotonic() + self.start_s
        while time.monotonic() < deadline and self._process.poll() is None:
            if self.accepts():
                return self._process.poll() is None
            time.sleep(0.01)
        self.kill()
        return False

    def log_text(self) -> str:
        """Return the broker's log of all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self) -> None:
        """Stop it cleanly, so that it writes its state. Does nothing if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it (SIGKILL), as a power cut does. Does nothing if it does not run."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Restart it on the same port."""
        self.stop()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def __enter__(self: _Self) -> _Self:
        if not self.pid:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Mosquitto(Broker):
    """Debian's mosquitto with its own configuration: anonymous clients, no delay of small packets.

    `persistence` keeps sessions and messages in `directory` over `stop`, and writes them after each turn of its
    loop that changed any, so `kill` may lose the last turn. `settings` are additional lines of mosquitto.conf:
    `{"max_inflight_messages": 5}`.
    """

    name = "mosquitto"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        persistence: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Raises BrokerError if mosquitto is not installed."""
        super().__init__(directory, port)
        program = toolchain.find("mosquitto")
        if program is None:
            raise BrokerError(f"mosquitto is not installed: {toolchain.TOOLS['mosquitto'].get}")
        self._program = program
        self._persistence = persistence
        self._settings = dict(settings or {})

    def command(self) -> list[str]:
        """Write the configuration for `self.port` and return the command line."""
        lines: dict[str, object] = {
            "listener": f"{self.port} {HOST}",
            "allow_anonymous": "true",
            "set_tcp_nodelay": "true",
            "max_queued_messages": 0,
            "log_dest": "stderr",
            "log_type": "all",
        }
        if os.geteuid() == 0:
            lines["user"] = "root"  # the user mosquitto cannot write to the directory
        if self._persistence:
            lines["persistence"] = "true"
            lines["persistence_location"] = f"{self.directory.resolve()}/"
            lines["autosave_on_changes"] = "true"
            lines["autosave_interval"] = 1
        lines |= self._settings
        config = self.directory / "mosquitto.conf"
        config.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        return [str(self._program), "-c", str(config)]


class Amqtt(Broker):
    """amqtt, a broker in Python, for machines without mosquitto. It keeps nothing over a restart."""

    name = "amqtt"

    def command(self) -> list[str]:
        """Run this module as a program."""
        return [sys.executable, "-m", "tools.broker", str(self.port)]


def start_broker(directory: Path) -> Broker:
    """Start mosquitto if it is installed, otherwise amqtt, and return it running."""
    broker = Mosquitto(directory) if toolchain.find("mosquitto") else Amqtt(directory)
    broker.start()
    return broker


async def _serve_amqtt(port: int) -> None:
    """Serve until SIGTERM, or until standard input ends because the parent process is gone."""
    from amqtt.broker import Broker as AmqttBroker

    broker = AmqttBroker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{HOST}:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())
    await broker.shutdown()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_amqtt(int(sys.argv[1])))
