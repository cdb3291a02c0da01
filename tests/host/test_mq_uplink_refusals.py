"""The uplink and what the queue manager does not want: messages, too many of them, and the record."""

from pathlib import Path
from typing import Any

import pytest

from headwater.ibmmq.chain import MQDLH
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_host.mq.uplink.uplink import Uplink, UplinkConfig
from headwater_mq.forward import Forward, LocalQueue
from tests.host.mq_recorder import Fault, Queue, Recorder
from tests.host.mq_uplink import DATA, PLAIN, RECORDED, arrived, fill, opened, run

pytestmark = [pytest.mark.needs_ibmmq, pytest.mark.needs_cc]


def dead_letters(outbox: Forward) -> list[tuple[Any, bytes]]:
    """Reason and rest of what is in the dead-letter queue."""
    found = []
    rows = outbox.file.db.execute(
        "SELECT md, body FROM messages JOIN queues ON queues.id = queue WHERE name = 'DEAD' ORDER BY messages.id"
    )
    for packed, body in rows:
        md = MD.unpack(packed)
        assert md.Format == CMQC.MQFMT_DEAD_LETTER_HEADER
        dlh = structures.decode(MQDLH, body, big=False, ccsid=819)
        assert dlh["DestQName"] == "EDGE".ljust(48)
        found.append((dlh["Reason"], body[172:]))
    return found


@pytest.mark.parametrize("config", [PLAIN, RECORDED], ids=["plain", "recorded"])
def test_what_will_never_be_taken_goes_to_the_dead_letter_queue(
    outbox: Forward, config: UplinkConfig, recorder: Recorder
) -> None:
    recorder.queues["IN"].length = 5
    uplink = run(outbox, config, recorder)
    assert arrived(recorder) == [data for data in DATA if len(data) <= 5]
    ((reason, rest),) = dead_letters(outbox)
    assert reason == CMQC.MQRC_MSG_TOO_BIG_FOR_Q
    # A segment keeps what it says of itself, in an MQMDE.
    assert rest[72:] == b"0123456789abcdef"
    assert rest[:4] == b"MDE "
    assert uplink.dead == 1
    assert uplink.last_error is not None
    assert "2030 (MQRC_MSG_TOO_BIG_FOR_Q)" in uplink.last_error


def test_a_batch_of_nothing_else(outbox: Forward) -> None:
    recorder = Recorder({"IN": Queue(length=-1), "SYNC": Queue()})
    run(outbox, RECORDED, recorder)
    assert arrived(recorder) == []
    assert len(dead_letters(outbox)) == len(DATA)
    assert [message.data for message in recorder.queues["SYNC"].messages] == [b"headwater 0"]


@pytest.mark.parametrize("config", [PLAIN, RECORDED], ids=["plain", "recorded"])
def test_a_full_queue_is_filled_again_when_there_is_room(
    outbox: Forward, config: UplinkConfig, recorder: Recorder
) -> None:
    target = recorder.queues["IN"]
    target.depth = 4
    taken: list[bytes] = []
    looks = [0]

    def read_one() -> bool:
        # Now and then: the uplink finds it full more than once.
        looks[0] += len(target.messages) == 4
        if looks[0] == 3:
            looks[0] = 0
            taken.append(target.messages.pop(0).data)
        return False

    uplink = run(outbox, config, recorder, stop=read_one)
    assert taken + arrived(recorder) == DATA
    assert uplink.connections == 1
    assert "2053" in str(uplink.last_error)


def test_pauses_do_not_grow_while_the_queue_is_emptied(outbox: Forward) -> None:
    """A queue that takes less than a batch is full at each turn, and takes something at each."""
    for _ in range(4):
        fill(outbox)
    recorder = Recorder({"IN": Queue(depth=2)})
    uplink = Uplink(PLAIN, outbox)
    with recorder:
        # It connects.
        assert uplink.step() == 0
        for _ in range(15):
            assert 0.5 <= uplink.step() <= 1
            recorder.queues["IN"].messages.clear()
        pauses = [uplink.step() for _ in range(6)]
        uplink._drop()
    assert pauses[-1] >= 8
    assert uplink.sent == 32


@pytest.mark.parametrize("most", [2, 3])
def test_a_queue_manager_that_takes_few_at_a_time(outbox: Forward, most: int, recorder: Recorder) -> None:
    # With three it takes the messages, and not the record behind them.
    puts: list[int] = []

    def limit(number: int, verb: str) -> Fault | None:
        puts[:] = [*puts, number] if verb == "MQPUT" else [] if verb in ("MQCMIT", "MQBACK") else puts
        return Fault(2024) if verb == "MQPUT" and len(puts) > most else None

    recorder._fault = limit
    run(outbox, RECORDED, recorder)
    assert arrived(recorder) == DATA


@pytest.mark.parametrize(
    "record, says", [(b"headwater 7", "says 7, the local queue 3"), (b"other", "not a record of headwater")]
)
def test_a_record_that_cannot_be_is_not_believed(
    outbox: Forward, record: bytes, says: str, recorder: Recorder
) -> None:
    run(outbox, RECORDED, recorder)
    (message,) = recorder.queues["SYNC"].messages
    recorder.queues["SYNC"].messages = [message._replace(data=record)]
    fill(outbox)
    uplink = run(outbox, RECORDED, recorder, stop=lambda: len(recorder.calls) > 60)
    assert arrived(recorder) == DATA
    assert uplink.state == "misconfigured"
    assert says in str(uplink.last_error)
    outbox.begin_again()
    run(outbox, RECORDED, recorder)
    assert arrived(recorder) == DATA + DATA


def test_a_record_that_is_gone_is_waited_for(outbox: Forward, recorder: Recorder) -> None:
    run(outbox, RECORDED, recorder)
    record = recorder.queues["SYNC"].messages.pop()
    fill(outbox)
    uplink = run(outbox, RECORDED, recorder, stop=lambda: len(recorder.calls) > 60)
    assert arrived(recorder) == DATA
    assert "there is no record of this queue on SYNC" in str(uplink.last_error)
    recorder.queues["SYNC"].messages.append(record)
    run(outbox, RECORDED, recorder)
    assert arrived(recorder) == DATA + DATA


def test_no_room_in_the_dead_letter_queue_stops_the_uplink(tmp_path: Path, recorder: Recorder) -> None:
    outbox = opened(tmp_path / "mq.db", LocalQueue("EDGE", "DEAD", 8, 1 << 20, 64 << 20))
    fill(outbox)
    with outbox.transaction():
        for _ in range(8):
            outbox.set_aside(MD(Version=2), b"x", 1)
    recorder.queues["IN"].length = 5
    uplink = Uplink(PLAIN, outbox)
    with recorder:
        for _ in range(20):
            uplink.step()
        assert uplink.state == "failing"
        assert outbox.dead_depth() == 8
        with outbox.transaction() as db:
            db.execute("DELETE FROM messages WHERE queue = ?", (outbox._dead,))
        for _ in range(20):
            uplink.step()
        uplink._drop()
    assert arrived(recorder) == [data for data in DATA if len(data) <= 5]
    assert [reason for reason, _ in dead_letters(outbox)] == [2030]
    outbox.close()
