"""A leader and a slave in one process, joined by a pipe of FMQ frames that can be cut at any byte."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO

from headwater.fmq import spec
from headwater_host.hub import frames
from headwater_host.hub.errors import StorageError
from headwater_host.hub.replication.follower import Follower
from headwater_host.hub.replication.leading import lead
from headwater_host.hub.replication.slaves import Ending, Slaves
from headwater_host.hub.replication.wire import CHANGES
from headwater_host.hub.storage import Limits, Store
from headwater_host.hub.storage.backup import backup, install
from headwater_host.hub.storage.copy import copy_to_file
from headwater_host.hub.storage.store import open_engine
from tests.host.hub_client import new_id, parse
from tests.host.hub_storage import Place


def copied(path: Path, ending: Ending) -> BinaryIO:
    """A copy of a storage, as an open file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy = Path(folder) / "copy.db"
        backup(str(path), str(copy), ending.proceed)
        return copy.open("rb")


def dumped(url: str, ending: Ending) -> BinaryIO:
    """A copy of a database, as an open file."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(open_engine(url)) as source,
        ending.aborts(source.abort),
    ):
        copy = Path(folder) / "copy.db"
        copy_to_file(source, str(copy))
        return copy.open("rb")


def leader_of(
    store: Store,
    place: Place,
    *names: str,
    sync: int = 0,
    deposed: Callable[[int], None] = lambda epoch: None,
) -> Slaves:
    def snapshot(ending: Ending) -> BinaryIO:
        return copied(place, ending) if isinstance(place, Path) else dumped(place, ending)

    return lead(store, names, sync, snapshot, deposed)


class Way:
    """One direction: payloads as frames, until ``left`` bytes have passed."""

    def __init__(self, give: Callable[[bytes], None], left: float, cut: Callable[[], None]):
        self._give = give
        self._left = left
        self._cut = cut
        self._bytes = bytearray()

    def send(self, payload: bytes) -> None:
        data = frames.publish(new_id(spec.PUBLISH), frames.message(CHANGES, (), payload))
        asyncio.get_running_loop().call_soon(self._pass, data)

    def _pass(self, data: bytes) -> None:
        if self._left <= 0:
            return
        self._bytes += data[: int(min(self._left, len(data)))]
        self._left -= len(data)
        while self._bytes and (found := parse(bytes(self._bytes))) is not None:
            got, end = found
            del self._bytes[:end]
            self._give(got.payload)
        if self._left <= 0:
            self._cut()


class Pipe:
    """A connection of a slave; ``down`` and ``up`` are the bytes that pass before it is cut."""

    writable = True

    def __init__(
        self, slaves: Slaves, follower: Follower, down: float = float("inf"), up: float = float("inf")
    ):
        self.slaves = slaves
        self.follower = follower
        self.is_open = True
        #: Why one side has ended it.
        self.refused = ""
        self._down = Way(partial(self._give, follower.received), down, self.cut)
        self._up = Way(partial(self._give, partial(slaves.received, self)), up, self.cut)
        follower.begin(self._up.send)

    def _give(self, received: Callable[[bytes], None], data: bytes) -> None:
        """Hand a payload over; a side that does not accept it ends the connection."""
        if self.is_open:
            try:
                received(data)
            except StorageError as error:
                self.refuse(str(error))

    def payload(self, data: bytes) -> None:
        self._down.send(data)

    def refuse(self, text: str) -> None:
        self.refused = text
        self.cut()

    def cut(self) -> None:
        if self.is_open:
            self.is_open = False
            self.slaves.lost(self)
            self.follower.lost()


class SlaveHub:
    """The storage of a slave and its follower, which a snapshot replaces."""

    def __init__(self, path: Path, name: str = "b", limits: Limits | None = None):
        self.path = path
        self.name = name
        self.limits = limits
        self.installed = 0
        self.is_due = False
        self._open()

    def _open(self) -> None:
        self.store = Store.open(self.path, self.limits, following=True)
        self.follower = Follower(self.store, self.name, self.incoming, self._complete)

    @property
    def incoming(self) -> Path:
        return self.path.with_name(self.path.name + "-incoming")

    def _complete(self) -> None:
        self.is_due = True

    async def settle(self) -> bool:
        """Put a complete snapshot in place; return whether there was one."""
        if not self.is_due:
            return False
        await self.reopen(snapshot=True)
        return True

    async def reopen(self, *, snapshot: bool = False) -> None:
        fence = self.store.counter("fence")
        await self.store.close()
        if snapshot:
            install(str(self.incoming), str(self.path), {"fence": fence})
            self.installed += 1
            self.is_due = False
        self._open()
