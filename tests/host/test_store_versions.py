"""Stores of version 1 that earlier code wrote, kept as text: the SQLite outboxes and the flash journal read them.

The MQTT stores hold four messages: the first is acknowledged, the second released (PUBREL), the third at QoS 2, the
fourth at QoS 1. Packet identifier 7 of a received message is in flight. The SQLite outbox also has a message in its
backlog. The FMQ store holds two frames, and what its message ids are made of.
"""

from pathlib import Path

from journal_file import MemoryFile

from headwater.connection import AT1, AT2, REL
from headwater.journal import JournalOutbox
from headwater_host.client.store import SqliteOutbox
from tests.host.sql import restored
from tests.host.test_sqlite_store import content

FORMATS = Path(__file__).parent / "formats"


def publish(packet_id: int, qos: int, mark: int) -> bytes:
    body = b"\x00\x01t" + packet_id.to_bytes(2, "big") + bytes([mark]) * 4
    return bytes([0x30 | qos << 1, len(body)]) + body


def pubrel(packet_id: int) -> bytes:
    return b"\x62\x02" + packet_id.to_bytes(2, "big")


LEFT = [(2, REL, pubrel(2)), (3, AT2, publish(3, 2, 67)), (4, AT1, publish(4, 1, 68))]


def test_an_sqlite_outbox_of_version_1(tmp_path: Path) -> None:
    path = restored(tmp_path / "store.db", FORMATS / "store-mqtt-1.dump")
    for _ in range(2):
        with SqliteOutbox(path, "meter", protocol="3.1.1", slots=8) as box:
            assert content(box) == LEFT
            assert not box.fresh
            assert [waiting.payload for waiting in box.backlog.queue] == [b"later"]


def test_an_fmq_outbox_of_version_1(tmp_path: Path) -> None:
    path = restored(tmp_path / "store.db", FORMATS / "store-fmq-1.dump")
    # Written with first byte 0x33; DUP is set when the store is opened.
    frame = bytes.fromhex("3b0102030405060708090a0401740021")
    with SqliteOutbox(path, "meter", slots=8, protocol="fmq") as box:
        assert [bytes(box.buf[box.at[i] : box.at[i] + box.size[i]]) for i in range(2)] == [frame, frame]
        assert list(box.state[:2]) == [AT1, AT2]
        assert (box.message_ids.process, box.message_ids.ceiling) == (b"\x05\x01", 1795366833900490141)


def test_a_flash_journal_of_version_1() -> None:
    file = MemoryFile(bytes.fromhex((FORMATS / "journal-1.hex").read_text()))
    box = JournalOutbox(file, 120, 8, 3, 480, 1)
    assert content(box) == LEFT
    assert (box.torn, box.damaged, box.unreadable) == (0, 0, 0)
    assert file.aside is None
    # It goes on in the same file.
    data = publish(5, 1, 69)
    at = box.reserve(len(data))
    box.buf[at : at + len(data)] = data
    assert box.commit(len(data), 1) >= 0
    box.sync()
    again = JournalOutbox(MemoryFile(file.kept), 120, 8, 3, 480, 1)
    assert content(again) == [*LEFT, (5, AT1, data)]
