"""Run PostgreSQL on the loopback interface: a primary and its streaming standbys, to be killed, paused and promoted.

Each server has its own data directory and port and does not interfere with a system service. PostgreSQL refuses to run
as root, so for root it runs as `postgres`, or as `nobody`.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tools import toolchain
from tools.broker import HOST, Broker, BrokerError

USER = DATABASE = "headwater"
_UNPRIVILEGED = ("postgres", "nobody")
_SETTINGS: Mapping[str, object] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_wal_senders": 10,
    # A standby that was away for a while catches up without a new base backup.
    "wal_keep_size": "256MB",
    # A reconnecting standby is quick to retry.
    "wal_retrieve_retry_interval": "200ms",
    "log_checkpoints": "off",
}


def _unprivileged() -> "pwd.struct_passwd | None":
    """Return the user to run as, or None for the current one."""
    if os.geteuid():
        return None
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise BrokerError(f"PostgreSQL does not run as root, and there is no user {' or '.join(_UNPRIVILEGED)}")


class PostgreSql(Broker):
    """A PostgreSQL server with the superuser and the database `headwater`, without passwords.

    Without `directory` it has one under /tmp, which `remove` deletes. `settings` are written to postgresql.conf;
    `configure` changes them while the server runs. `fsync` is on.
    """

    name = "PostgreSQL"
    start_s = 60.0
    stop_s = 30.0
    port_taken = "could not bind"

    def __init__(
        self,
        directory: Path | None = None,
        port: int | None = None,
        *,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Raises BrokerError if PostgreSQL is not installed."""
        # pytest's directories are closed to other users.
        place = directory or Path(tempfile.mkdtemp(prefix="headwater-postgresql-"))
        super().__init__(place.resolve(), port)
        program = toolchain.find("postgresql")
        if program is None:
            raise BrokerError(f"PostgreSQL is not installed: {toolchain.TOOLS['postgresql'].get}")
        self._programs = program.parent
        self._settings = dict(_SETTINGS) | dict(settings or {})
        self._as = _unprivileged()
        self.data = self.directory / "data"

    # -- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the data directory if there is none, then start and wait until the server answers queries."""
        self._own()
        if not self.data.exists():
            options = ["--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C", "--no-sync"]
            self.tool("initdb", *options, f"--pgdata={self.data}")
            super().start()
            self.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        else:
            super().start()

    def command(self) -> list[str]:
        """Write the settings for `self.port` and return the command line."""
        lines = self._settings | {"port": self.port}
        config = "".join(f"{key} = '{value}'\n" for key, value in lines.items())
        (self.data / "postgresql.conf").write_text(config)
        return [str(self._programs / "postgres"), "-D", str(self.data)]

    def environment(self) -> dict[str, str]:
        """Return an environment without the caller's settings for PostgreSQL's clients."""
        return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": str(self.directory)}

    def user(self) -> "pwd.struct_passwd | None":
        """Return the user to run as, or None for the current one."""
        return self._as

    def working_directory(self) -> Path:
        """Return a directory that the server's user may read."""
        return self.directory

    def accepts(self) -> bool:
        """Return whether it answers queries."""
        ready = [str(self._programs / "pg_isready"), "-q", "-h", HOST, "-p", str(self.port), "-t", "1"]
        return subprocess.run(ready, check=False).returncode == 0

    def stop(self) -> None:
        """Stop it without waiting for its clients. Does nothing if it does not run."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill all its processes (SIGKILL), as a power cut does. Does nothing if it does not run."""
        # Stopped, the main process replaces none of the killed ones.
        pids = self._signal(signal.SIGSTOP)
        for pid in pids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)
        for pid in pids[1:]:
            _wait_for_end(pid)

    def pause(self) -> None:
        """Stop all its processes without ending them: connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        """Kill it and delete its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal(self, which: signal.Signals) -> list[int]:
        main = self.pid
        if not main:
            return []
        os.kill(main, which)
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
        return [main, *map(int, children)]

    def _own(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._as is not None:
            os.chown(self.directory, self._as.pw_uid, self._as.pw_gid)

    # -- queries -----------------------------------------------------------------------------------------------------

    def url(self, database: str = DATABASE, port: int | None = None) -> str:
        """Return the URL of a database, also for another port (of a proxy)."""
        return f"postgresql://{USER}@{HOST}:{port or self.port}/{database}"

    def sql(self, text: str, database: str = DATABASE, seconds: float = 60) -> str:
        """Run statements with psql and return their rows, a line for each, fields separated by `|`.

        Raises BrokerError with PostgreSQL's message.
        """
        options = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]
        return self.tool("psql", *options, "-c", text, self.url(database), seconds=seconds).strip()

    def tool(self, name: str, *arguments: str, seconds: float = 300) -> str:
        """Run one of PostgreSQL's programs as its user and return its output. Raises BrokerError."""
        user = self._as
        try:
            done = subprocess.run(
                [self._programs / name, *arguments],
                cwd=self.directory,
                env=self.environment(),
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BrokerError(f"{name} did not end within {seconds} s") from None
        if done.returncode:
            raise BrokerError(f"{name}: {done.stderr.strip()}")
        return done.stdout

    def create(self, database: str) -> str:
        """Create an empty database and return its URL."""
        self.sql(f"CREATE DATABASE {database}")
        return self.url(database)

    def configure(self, **settings: object) -> None:
        """Change settings of the running server (ALTER SYSTEM) and wait until its sessions use them."""
        for name, value in settings.items():
            self.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        loaded = "SELECT pg_conf_load_time()"
        before = self.sql(loaded)
        self.sql("SELECT pg_reload_conf()")
        # The server signals its sessions before it begins another one.
        while self.sql(loaded) == before:
            time.sleep(0.005)

    # -- replication -------------------------------------------------------------------------------------------------

    def standby(self, name: str, directory: Path | None = None) -> "PostgreSql":
        """Return a running streaming standby of this server, with `name` as its application name."""
        made = PostgreSql(directory, settings=self._settings)
        made.follow(self, name)
        return made

    def follow(self, primary: "PostgreSql", name: str, port: int | None = None) -> None:
        """Replace this server's data by a base backup of `primary`, and start as its standby.

        `port` is another port to reach it by (of a proxy). What only this server had is lost.
        """
        self.kill()
        self._own()
        shutil.rmtree(self.data, ignore_errors=True)
        source = f"host={HOST} port={port or primary.port} user={USER} application_name={name}"
        options = ["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]
        self.tool("pg_basebackup", "-d", source, "-D", str(self.data), *options)
        # Its own settings follow from those of its primary, which may be synchronous.
        auto = self.data / "postgresql.auto.conf"
        kept = [line for line in auto.read_text().splitlines(True) if "synchronous_standby_names" not in line]
        auto.write_text("".join(kept))
        self.start()

    def require(self, *standbys: str, seconds: float = 60) -> None:
        """Let each commit wait for one of these standbys, as soon as one of them is synchronous; none: do not wait."""
        quoted = ", ".join(f'"{name}"' for name in standbys)
        names = f"FIRST 1 ({quoted})" if standbys else ""
        self.configure(synchronous_standby_names=names)
        deadline = time.monotonic() + seconds
        state = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'"
        while standbys and self.sql(state) == "0":
            if time.monotonic() > deadline:
                raise BrokerError(f"none of {', '.join(standbys)} is synchronous after {seconds} s")
            time.sleep(0.02)

    def promote(self) -> None:
        """Make a standby a primary and wait until it is one."""
        if self.sql("SELECT pg_promote(true, 60)") != "t":
            raise BrokerError("the standby was not promoted within 60 s")


def _wait_for_end(pid: int) -> None:
    """Wait until a killed process that is not a child of this one is gone, so that its port and memory are free."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while ") Z" not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.002)
