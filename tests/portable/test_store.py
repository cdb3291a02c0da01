# heap: 2M
"""The outboxes against a model, with random operations: the one in memory, and the one with a journal.

``CASES`` are for the tests of further stores as well.
"""

from journal_file import MemoryFile
from pipe import Random

from headwater.connection import AT1, AT2, DONE, FREE, REL, RamOutbox
from headwater.journal import JournalOutbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[[int, int], RamOutbox]


def journal(size: int, slots: int) -> RamOutbox:
    return JournalOutbox(MemoryFile(), size, slots, limit=300)


STORES: "tuple[Make, ...]" = (RamOutbox, journal)


class Model:
    """A list of [packet id, state, content], oldest first; an id is an index + 1, taken in turn."""

    def __init__(self, slots: int):
        self.slots = slots
        self.entries: list[list[object]] = []
        self.next = 0

    def add(self, state: int, content: bytes) -> int:
        packet_id = self.next + 1
        self.entries.append([packet_id, state, content])
        self.next = packet_id % self.slots
        return packet_id

    def clean(self) -> None:
        while self.entries and self.entries[0][1] == DONE:
            self.entries.pop(0)


def check(box: RamOutbox, model: Model) -> None:
    assert box.count == len(model.entries)
    i = box.head
    used = []
    for packet_id, state, content in model.entries:
        assert i + 1 == packet_id
        assert box.state[i] == state
        at, n = box.at[i], box.size[i]
        assert isinstance(content, bytes)
        assert bytes(box.buf[at : at + n]) == content, "an entry was overwritten"
        if state != DONE:
            assert isinstance(packet_id, int)
            assert box.find(packet_id) == i
        used.append((at, at + n))
        i = i + 1 if i + 1 < box.slots else 0
    used.sort()
    for k in range(1, len(used)):
        assert used[k - 1][1] <= used[k][0], "two entries share bytes"
    live = [entry[0] for entry in model.entries if entry[1] != DONE]
    for packet_id in (-1, 0, 1, box.slots, box.slots + 1, 65535):
        assert (box.find(packet_id) >= 0) == (packet_id in live)


def play(make: "Make", seed: int, size: int, slots: int) -> int:
    """Random publishes, acknowledgements and clearing; how many messages there was no room for."""
    random = Random(seed)
    box = make(size, slots)
    model = Model(slots)
    refused = 0
    for step in range(400):
        what = random.below(100)
        live = [entry for entry in model.entries if entry[1] != DONE]
        if what < 55:
            n = 4 + random.below(size if what == 0 else 24)
            at = box.reserve(n)
            if at < 0:
                refused += 1
                # There is really no room: no slot, too large, or no free piece that is large enough, neither behind
                # the newest entry nor, when that is not in front of the oldest already, before the oldest.
                newest, oldest = box._free, box.at[box.head]
                piece = max(size - newest, oldest) if newest > oldest else oldest - newest
                assert box.count == slots or n > (piece if box.count else size)
            else:
                assert 0 <= at <= size - n
                assert box.next == model.next
                content = bytes([(step + k) & 255 for k in range(n)])
                box.buf[at : at + n] = content
                state = AT1 if what & 1 else AT2
                i = box.commit(n, state)
                assert i + 1 == model.add(state, content)
        elif what < 97 and live:
            # Mostly the oldest, sometimes any.
            entry = live[0 if what < 80 else random.below(len(live))]
            packet_id = entry[0]
            assert isinstance(packet_id, int)
            i = box.find(packet_id)
            if entry[1] == AT2:
                box.buf[box.at[i] : box.at[i] + 4] = b"\x62\x02" + bytes([packet_id >> 8, packet_id & 255])
                box.size[i] = 4
                entry[1], entry[2] = REL, bytes(box.buf[box.at[i] : box.at[i] + 4])
                assert box.set(i, REL) == 0
            else:
                entry[1] = DONE
                model.clean()
                assert box.set(i, DONE) == 0
        elif what == 99:
            box.clear()
            model.entries.clear()
        check(box, model)
    return refused


def random_operations(make: "Make", seeds: int = 8) -> None:
    refused = 0
    for seed in range(seeds):
        for size, slots in ((8, 1), (30, 3), (64, 2), (100, 8), (200, 16), (60, 40)):
            refused += play(make, seed * 7 + size, size, slots)
    assert refused > 12 * seeds


def a_ring_that_is_exactly_full(make: "Make") -> None:
    box = make(32, 4)
    for _ in range(4):
        at = box.reserve(8)
        assert at >= 0
        box.commit(8, AT1)
    assert box.reserve(1) == -1
    for i in (0, 1, 2, 3) * 3:
        box.set(i, DONE)
        assert box.reserve(9) == -1
        assert box.reserve(8) == 8 * i
        box.commit(8, AT1)
        assert box.reserve(1) == -1


def what_was_acknowledged_out_of_order_waits_for_the_oldest(make: "Make") -> None:
    box = make(64, 4)
    for _ in range(4):
        assert box.reserve(16) >= 0
        box.commit(16, AT1)
    for i in (2, 1, 3):
        box.set(i, DONE)
        assert box.count == 4 and box.find(i + 1) == -1
    box.set(0, DONE)
    assert box.count == 0 and bytes(box.state) == bytes([FREE] * 4)
    assert box.next == 0 and box.head == 0


def the_whole_buffer_for_one_message(make: "Make") -> None:
    box = make(100, 4)
    assert box.reserve(101) == -1
    for _ in range(6):
        assert box.reserve(100) == 0
        i = box.commit(100, AT1)
        assert box.reserve(1) == -1
        box.set(i, DONE)


def sizes_that_make_no_sense(make: "Make") -> None:
    for size, slots in ((7, 1), (100, 0), (100, -1), (100, 65281)):
        try:
            make(size, slots)
        except ValueError:
            continue
        raise AssertionError((size, slots))
    assert make(8, 65280).slots == 65280


CASES = (
    random_operations,
    a_ring_that_is_exactly_full,
    what_was_acknowledged_out_of_order_waits_for_the_oldest,
    the_whole_buffer_for_one_message,
    sizes_that_make_no_sense,
)


def test_every_store_as_the_contract_says() -> None:
    for make in STORES:
        for case in CASES:
            case(make)
