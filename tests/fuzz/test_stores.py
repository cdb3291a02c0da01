"""Every store against the one in memory, by hypothesis: publish, acknowledge, receive, and start again."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from journal_file import MemoryFile

from headwater.connection import AT1, AT2, DONE, REL, RamOutbox
from headwater.journal import JournalOutbox
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.store import SqliteOutbox
from headwater_host.mqtt_properties import Properties

SIZE = 160
SLOTS = 6


class Stores(RuleBasedStateMachine):
    """A journal and an SQLite file do whatever an outbox in memory does, over any number of restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.file = MemoryFile()
        self.limit = 300
        # Memory that takes a message wherever its bytes would fit in all: as the one in front of SQLite does, and as a
        # journal has it after a restart, when there are no gaps.
        self.model: RamOutbox = GrowingOutbox(SIZE, SLOTS, SIZE)
        self.ids: set[int] = set()
        # What waits and was never sent: only the SQLite file keeps it.
        self.waiting: list[tuple[bytes, bytes, int, bool, Properties | None]] = []
        self.mark = 0

    @initialize(limit=st.sampled_from((60, 300, 2000)))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.journal = JournalOutbox(self.file, 4 * SIZE, SLOTS, 3, limit)
        self.sqlite = SqliteOutbox(self.path, "c", slots=SLOTS, size=32, limit=SIZE, keeps_over="process")

    def teardown(self) -> None:
        self.sqlite.close()
        self.folder.cleanup()

    def boxes(self) -> tuple[RamOutbox, ...]:
        return self.model, self.journal, self.sqlite

    @rule(qos=st.sampled_from((AT1, AT2)), size=st.integers(4, 60))
    def publish(self, qos: int, size: int) -> None:
        self.mark += 1
        data = bytes([0x30 | qos << 1, size - 2, *((self.mark + k) & 255 for k in range(size - 2))])
        if self.model.reserve(size) < 0:
            # The others may have room: after a restart, what is acknowledged takes less there.
            return
        indices = set()
        for box in self.boxes():
            at = box.reserve(size)
            assert at >= 0
            box.buf[at : at + size] = data
            indices.add(box.commit(size, qos))
        assert len(indices) == 1

    @precondition(lambda self: self.model.count)
    @rule(k=st.integers(0, SLOTS))
    def acknowledge(self, k: int) -> None:
        i = (self.model.head + k % self.model.count) % SLOTS
        state = self.model.state[i]
        if state == DONE:
            return
        for box in self.boxes():
            assert box.set(i, REL if state == AT2 else DONE) == 0
            if state == AT2:
                box.buf[box.at[i] : box.at[i] + 4] = b"\x62\x02" + (i + 1).to_bytes(2, "big")
                box.size[i] = 4

    @rule(
        topic=st.binary(max_size=3),
        payload=st.binary(max_size=20),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        text=st.none() | st.text("aé", max_size=2),
    )
    def wait(self, topic: bytes, payload: bytes, qos: int, retain: bool, text: str | None) -> None:
        properties = None if text is None else {"content_type": text, "user_property": [("a", text)]}
        assert self.sqlite.backlog.put(topic, payload, qos, retain, properties) is not None
        self.waiting.append((topic, payload, qos, retain, properties))

    @precondition(lambda self: self.waiting)
    @rule()
    def wait_no_longer(self) -> None:
        assert tuple(self.sqlite.backlog.pop())[1:] == self.waiting.pop(0)

    @rule(topic=st.binary(max_size=3))
    def fail(self, topic: bytes) -> None:
        # What the file did not take was not taken; what left meanwhile is told to it later.
        self.sqlite.commits.db.execute("PRAGMA query_only = 1")
        assert self.sqlite.backlog.put(topic, b"", 1, False, None) is None
        if self.waiting:
            assert self.sqlite.backlog.pop().topic == self.waiting.pop(0)[0]
        assert not self.sqlite.backlog.is_ready()
        self.sqlite.commits.db.execute("PRAGMA query_only = 0")
        assert self.sqlite.backlog.is_ready()

    @rule(packet_id=st.integers(1, 5))
    def receive(self, packet_id: int) -> None:
        self.ids.add(packet_id)
        assert self.journal.opened(packet_id) == self.sqlite.opened(packet_id) == 0

    @rule(packet_id=st.integers(0, 5))
    def release(self, packet_id: int) -> None:
        self.ids = self.ids - {packet_id} if packet_id else set()
        assert self.journal.closed(packet_id) == self.sqlite.closed(packet_id) == 0

    @rule(what=st.integers(0, 15))
    def begin_anew(self, what: int) -> None:
        for box in self.boxes():
            if what == 0:
                assert box.settle() == 0
            elif what == 1:
                box.clear()

    @rule()
    def restart(self) -> None:
        assert self.journal.sync() == 0
        self.file = MemoryFile(self.file.kept)
        self.journal = JournalOutbox(self.file, 4 * SIZE, SLOTS, 3, self.limit)
        assert not (self.journal.torn or self.journal.damaged or self.journal.lost)
        self.sqlite.close()
        self.sqlite = SqliteOutbox(self.path, "c", slots=SLOTS, size=32, limit=SIZE, keeps_over="process")
        assert set(self.sqlite.ids) == self.ids
        # Without an entry, a store need not know which id comes next; all go on from where the journal is.
        if not self.model.count:
            for box in (self.model, self.sqlite):
                box.head = box.next = self.journal.next

    @invariant()
    def all_hold_the_same(self) -> None:
        if not hasattr(self, "journal"):
            return
        wanted = content(self.model)
        assert content(self.journal) == wanted
        assert content(self.sqlite) == wanted
        assert self.journal.next == self.sqlite.next == self.model.next
        assert self.journal.fresh == self.sqlite.fresh == self.model.fresh
        assert [tuple(m)[1:] for m in self.sqlite.backlog.queue] == self.waiting
        assert self.sqlite.backlog.size == sum(
            len(topic) + len(payload) for topic, payload, *_ in self.waiting
        )
        assert {i for i in self.journal.ids if i} == self.sqlite._qos2_ids == self.ids
        assert len(self.file.kept or b"") <= max(self.limit, 2 * (22 + SLOTS * 70 + 60))


def content(box: RamOutbox) -> list[tuple[int, int, bytes]]:
    """(index, state, bytes without DUP) of what is not acknowledged, oldest first."""
    found = []
    for k in range(box.count):
        i = (box.head + k) % box.slots
        data = bytearray(box.buf[box.at[i] : box.at[i] + box.size[i]])
        if box.state[i] in (AT1, AT2):
            data[0] &= ~8
        if box.state[i] != DONE:
            found.append((i, box.state[i], bytes(data)))
    return found


Stores.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=50)
test_stores = Stores.TestCase
