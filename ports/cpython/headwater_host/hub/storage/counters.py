"""Counters of the storage itself: its age time, the number of times it was opened, and the oldest change kept."""

import json
from typing import Any

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import restore
from headwater_host.hub.storage.contract import Engine
from headwater_host.hub.storage.records import encoded
from headwater_host.hub.storage.writer import Writer
from headwater_host.lifetime import AgeClock, Clocks


class Counters:
    """The counters of one storage. Raises StorageError when they are damaged."""

    def __init__(self, engine: Engine, writer: Writer, clocks: Clocks | None):
        self._writer = writer
        self._found = found = dict[str, Any](restore.rows(engine, "counter"))
        if found.get("copying"):
            raise StorageError(
                f"the hub's storage {engine.name} is an incomplete copy: delete it, and copy again"
            )
        #: The last process number that was given.
        self.process: int = found.get("process", 0)
        #: The last change that is not kept for followers any more.
        self.followed: int = found.get("followed", 0)
        #: The last change whose message id was forgotten.
        self.forgotten: int = found.get("forgotten", 0)
        self._starts: int = found.get("starts", 0)
        kept = found.get("age", "")
        renewed = found.get("renewed", "")
        try:
            self.age = AgeClock(kept, clocks)
            #: Messages up to this change have a time by the wall clock; their age counts from this age time.
            self.renewed = (0, 0)
            if renewed:
                last, at = json.loads(renewed)
                self.renewed = last, at
            elif not kept:
                self.renewed = writer.seq, self.age.now()
        except (TypeError, ValueError) as error:
            raise engine.damaged(str(error)) from error
        self._is_aged = bool(kept)

    def start(self) -> int:
        """Return a number that no other start of a hub with this storage has."""
        self._starts += 1
        self._writer.change("counter", "starts", self._starts)
        return self._starts

    def get(self, name: str) -> Any:
        """Return the value of a counter that ``put`` or ``put_locally`` wrote, None without one."""
        return self._found.get(name)

    def put(self, name: str, value: int | str) -> None:
        """Write a counter. Followers get it."""
        self._found[name] = value
        self._writer.change("counter", name, value)

    def put_locally(self, name: str, value: int | str) -> None:
        """Write a counter of this storage. Followers do not get it."""
        self._found[name] = value
        self._writer.silently("counter", (name, value))
        self._writer.wake()

    def replay(self, name: str, value: Any) -> None:
        """Make a change of the leader, in memory only."""
        if name == "starts":
            self._starts = value
        elif name != "followed":
            self._found[name] = value
        elif value > self.followed:
            self.followed = value
            self._writer.tidy("forget_changes", value)

    @property
    def is_due(self) -> bool:
        """True if the age time is to be written with the next transaction."""
        return self.age.is_due or not self._is_aged

    def settle(self) -> None:
        """Complete the transaction. The age time is no change: a follower has a clock of its own."""
        if not self.is_due:
            return
        self._writer.silently("counter", ("age", self.age.kept()))
        if not self._is_aged:
            self._writer.silently("counter", ("renewed", encoded(self.renewed)))
        self._is_aged = True

    def forget_changes(self, keep: int, most: int) -> bool:
        """Remove changes before the last ``keep``, at most ``most`` at once. Return whether there are more."""
        too_many = self._writer.seq - keep - self.followed
        if too_many > keep // 10:
            self.followed += min(too_many, most)
            self._writer.change("counter", "followed", self.followed)
            self._writer.tidy("forget_changes", self.followed)
        return too_many > most
