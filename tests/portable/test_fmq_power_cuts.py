# heap: 1M
"""The power goes at any byte that a board writes into its journal, and FMQ's messages are stored once all the same."""

from fmq_hub import PROCESS, Hub, Pair, small
from journal_file import MemoryFile, PowerCutError

from headwater.journal import JournalOutbox

LEVELS = (2, 1, 2, 1)


def life(hub: Hub, file: MemoryFile, boot: int, count: int, taken: "list[bytes]") -> "list[int]":
    """A board's life: what its journal has, then ``count`` new messages. The numbers of those that were delivered."""
    # A short journal is written anew all the time.
    box = JournalOutbox(file, 512, 6, limit=160)
    delivered: list[int] = []
    p = Pair(small(outbox=box, process=bytes([PROCESS]), boot=boot))
    p.hub = hub
    hub.one_life = False
    p.client.on_delivered = delivered.append
    for n in range(count):
        payload = bytes([boot, n])
        number = p.client.publish(b"t", payload, LEVELS[n])
        assert number > 0
        taken.append(payload)
        if n == 1:
            p.connect()
    if count < 2:
        p.connect()
    assert p.run() == 0
    p.quiet()
    return delivered


def cut_life(file: MemoryFile, all_of_it: "list[bytes]") -> None:
    """A life whose power goes, and the next: each message once, in order; the one of which ``publish`` had not returned
    may be there, or not."""
    hub = Hub()
    taken: list[bytes] = []
    try:
        life(hub, file, 1, 4, taken)
    except PowerCutError:
        pass
    hub.lost()
    life(hub, type(file)(file.kept), 2, 2, taken)
    got = [message[1] for message in hub.stored]
    first = [payload for payload in got if payload[0] == 1]
    assert first[: len(taken) - 2] == [payload for payload in taken if payload[0] == 1], got
    assert len(first) <= len(taken) - 1 and first == all_of_it[: len(first)]
    assert [payload for payload in got if payload[0] == 2] == [b"\x02\x00", b"\x02\x01"]


def test_a_power_cut_at_every_byte() -> None:
    hub = Hub()
    file = MemoryFile()
    all_of_it: list[bytes] = []
    assert len(life(hub, file, 1, 4, all_of_it)) == 4
    writes = file.written + file.syncs
    assert writes > 200
    for torn in (0, 3):
        for k in range(0, writes + 20, 1 if torn == 0 else 5):
            cut_life(MemoryFile(torn=torn, cut_after=k), all_of_it)


def test_what_was_answered_with_pubrec_is_not_published_again_if_the_journal_knows() -> None:
    hub = Hub()
    file = MemoryFile()
    box = JournalOutbox(file, 512, 6)
    p = Pair(small(outbox=box, process=bytes([PROCESS])))
    p.hub = hub
    p.connect()
    p.client.publish(b"t", b"x", 2)
    p.step_up()
    p.step_down()
    assert box.compact() == 0
    hub.lost()
    hub.log = []
    again = Pair(small(outbox=JournalOutbox(MemoryFile(file.kept), 512, 6), process=bytes([PROCESS]), boot=1))
    again.hub = hub
    again.connect()
    assert [kind for kind, _, _ in hub.log] == [0, 6] and again.at.delivered == [1]
    again.quiet()


def test_what_a_damaged_journal_has_lost_is_not_sent() -> None:
    file = MemoryFile()
    box = JournalOutbox(file, 512, 6)
    client = small(outbox=box, process=bytes([PROCESS]))
    for n in range(3):
        assert client.publish(b"t", bytes([n]) * 8, 1) > 0
    kept = bytearray(file.kept or b"")
    at = bytes(kept).find(b"\x01" * 8)
    kept[at] ^= 255
    box = JournalOutbox(MemoryFile(bytes(kept)), 512, 6)
    assert box.damaged and box.lost
    p = Pair(small(outbox=box, process=bytes([PROCESS]), boot=1))
    p.connect()
    assert [message[1][0] for message in p.hub.stored] == [0, 2]
    p.quiet()
