"""A hub with one thing wrong, to see that the checker of its history finds it.

python tests/host/hub_mutants.py NAME hub --config hub.toml
"""

import sys
from collections.abc import Callable
from typing import Any

from headwater_host.cli.main import main
from headwater_host.hub import broadcast, groups
from headwater_host.hub.storage import restore, sessions, store, writer
from headwater_host.hub.storage.queues import Position


def _patch(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Put what ``make`` makes of a function in its place."""
    return lambda: setattr(owner, name, make(getattr(owner, name)))


def _at_once(before: Any) -> Any:
    return lambda self, done: done()


class _Forgetful(set[bytes]):
    def __contains__(self, key: object) -> bool:
        return False


def _forgetful(before: Any) -> Any:
    def load(self: Any) -> None:
        before(self)
        self._seen.ids = _Forgetful(self._seen.ids)

    return load


def _forgetting(before: Any) -> Any:
    def load(self: Any) -> None:
        before(self)
        self._seen.ids.clear()
        self._seen._order.clear()

    return load


def _nothing(before: Any) -> Any:
    return lambda *args, **more: None


def _never(before: Any) -> Any:
    return lambda *args: iter(())


def _done_with(before: Any) -> Any:
    def give_up(self: Any, lane: Any, *, failed: bool) -> None:
        for seq in list(lane.open):
            self.done(lane, seq)

    return give_up


def _unwritten(before: Any) -> Any:
    def change(self: Any, kind: str, *values: Any) -> Any:
        lost = kind in ("position", "open", "close") and values[0] != "audit"
        return 0 if lost else before(self, kind, *values)

    return change


def _backwards(before: Any) -> Any:
    return lambda *args: before(*args)[::-1]


def _gaps(before: Any) -> Any:
    return lambda self, messages: before(self, [one for one in messages if one.seq % 10])


#: What is wrong, and what does it.
MUTANTS: dict[str, Callable[[], None]] = {
    "answers before the disk has it": _patch(writer.Writer, "after", _at_once),
    "stores what it has stored": _patch(store.Store, "_load", _forgetful),
    "forgets ids when it starts": _patch(store.Store, "_load", _forgetting),
    "takes what was not acknowledged for done": _patch(groups.Group, "give_up", _done_with),
    "keeps no acknowledgements": _patch(writer.Writer, "change", _unwritten),
    "hands out backwards": _patch(Position, "take", _backwards),
    "does not push everything": _patch(broadcast.Broadcasts, "stored", _gaps),
    "keeps no wills": _patch(sessions.Sessions, "keep_will", _nothing),
    "keeps wills for ever": _patch(sessions.Sessions, "forget_will", _nothing),
    "keeps nothing retained": _patch(restore, "retained", _never),
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    sys.exit(main())
