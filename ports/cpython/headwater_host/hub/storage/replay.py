"""Apply the changes of a leader, so that a follower's storage equals the leader's.

A follower decides nothing: it trims, forgets ids and moves positions when the leader did. Each change keeps its
sequence number. Only files are tidied independently: messages of deleted topics, and the log of changes, of which a
follower may keep less.
"""

from collections.abc import Callable
from typing import Any

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.cache import Cache
from headwater_host.hub.storage.counters import Counters
from headwater_host.hub.storage.positions import Positions
from headwater_host.hub.storage.records import Change, Message
from headwater_host.hub.storage.removal import Removal
from headwater_host.hub.storage.seen import SeenIds
from headwater_host.hub.storage.sessions import Sessions
from headwater_host.hub.storage.topic import Topic, Topics
from headwater_host.hub.storage.writer import Writer

_POSITIONS = ("position", "open", "close", "detach")
_SESSIONS = (
    "client",
    "forget",
    "session",
    "end",
    "subscribe",
    "unsubscribe",
    "hold",
    "release",
    "will",
    "unwill",
)
#: More messages than any queue has.
_ALL = 1 << 62


class Replay:
    """Applies changes to the parts of one store. ``put`` stores a message, ``retain`` only retains it, ``unretain``
    clears the retained message of a topic by its name."""

    def __init__(
        self,
        topics: Topics,
        writer: Writer,
        removal: Removal,
        positions: Positions,
        seen: SeenIds,
        sessions: Sessions,
        counters: Counters,
        cache: Cache,
        put: Callable[[Topic, Message, int], None],
        retain: Callable[[Topic, Message], None],
        unretain: Callable[[str], None],
    ):
        self._topics = topics
        self._writer = writer
        self._removal = removal
        self._positions = positions
        self._seen = seen
        self._sessions = sessions
        self._counters = counters
        self._cache = cache
        self._put = put
        self._retain = retain
        self._unretain = unretain
        #: What applies a change that has a message, by kind; and a change that has a row or statements.
        self._messages: dict[str, Callable[..., None]] = {
            "message": self._message,
            "retained": self._retained,
            "seen": self._seen.replay,
        }
        self._kinds: dict[str, Callable[..., None]] = {
            "counter": self._counter,
            "register": self._register,
            "unregister": self._unregister,
            "trim": self._trim,
            "unretain": self._unretain_topic,
        }

    def apply(self, change: Change) -> None:
        """Apply a change that the follower does not have. Raises StorageError when it does not fit to the others."""
        seq, kind, values = change
        if seq <= self._writer.seq:
            raise StorageError(f"change {seq} does not come after change {self._writer.seq}")
        try:
            if kind in self._messages:
                self._writer.number(seq)
                self._messages[kind](seq, *values)
                return
            if kind in _POSITIONS:
                self._positions.replay(kind, values)
            elif kind in _SESSIONS:
                self._sessions.replay(kind, values)
            else:
                self._kinds[kind](*values)
            self._writer.replay(seq, kind, values)
        except (LookupError, TypeError, ValueError) as error:
            text = f"change {seq} ({kind}) does not fit to the changes before it: {error!r}"
            raise StorageError(text) from error

    # -- messages ----------------------------------------------------------------------------------------------------

    def _message(self, seq: int, fresh: Message) -> None:
        topic = self._topics[fresh.topic]
        self._put(topic, fresh, fresh.size)
        # A dead letter has the id of a message that was stored before.
        if not topic.is_dead:
            self._seen.replay(seq, fresh.id, fresh.time_ns)

    def _retained(self, seq: int, fresh: Message) -> None:
        """Retain a message that was trimmed before it was replicated."""
        self._retain(self._topics[fresh.topic], fresh)
        self._seen.replay(seq, fresh.id, fresh.time_ns)

    # -- other changes -----------------------------------------------------------------------------------------------

    def _counter(self, name: str, value: Any) -> None:
        if name == "process":
            self._sessions.last_process = value
        elif name == "forgotten":
            self._seen.replay_forgotten(value)
        else:
            self._counters.replay(name, value)

    def _register(self, number: int, name: str, queues: int) -> None:
        topic = self._topics.grow(name, number, queues)
        self._positions.replay_growth(topic)

    def _unregister(self, number: int) -> None:
        topic = self._topics.numbers[number]
        self._topics.remove(topic.name)
        self._removal.mark_topic(number, topic.queues)
        self._unretain(topic.name)
        self._writer.batch.retained.pop(number, None)

    def _trim(self, number: int, queue: int, through: int) -> None:
        # The leader does not replicate messages of a topic that it has deleted since.
        gone = self._topics.drop(self._topics.numbers[number], queue, through, _ALL)
        self._cache.drop(gone)
        self._writer.batch.gone += gone

    def _unretain_topic(self, number: int) -> None:
        self._unretain(self._topics.numbers[number].name)
        self._writer.batch.retained[number] = None
