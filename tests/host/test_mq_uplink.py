"""The uplink, from the file of local queues to a recorded queue manager: what arrives, pauses, what is in the file."""

from pathlib import Path
from typing import Any

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_host.mq.uplink.uplink import Stored, Uplink, UplinkConfig
from headwater_mq.forward import Forward
from tests.host.mq_recorder import Fault, Recorder
from tests.host.mq_uplink import DATA, MESSAGES, PLAIN, RECORDED, arrived, fill, opened, queues, run, steps

pytestmark = [pytest.mark.needs_ibmmq, pytest.mark.needs_cc]


@pytest.mark.parametrize("config", [PLAIN, RECORDED], ids=["plain", "recorded"])
def test_everything_arrives_whole_and_in_order(
    outbox: Forward, config: UplinkConfig, recorder: Recorder
) -> None:
    sent = [stored.fields["MsgId"] for stored in outbox.batch(100, 1 << 20)]
    uplink = run(outbox, config, recorder)
    found = recorder.queues["IN"].messages
    assert [message.data for message in found] == DATA
    for message, (fields, _) in zip(found, MESSAGES, strict=True):
        expected: dict[str, Any] = {
            "GroupId": CMQC.MQGI_NONE,
            "MsgSeqNumber": 1,
            "Offset": 0,
            "MsgFlags": 0,
            **fields,
        }
        expected["MsgFlags"] |= {CMQC.MQMF_LAST_SEGMENT: 2, CMQC.MQMF_LAST_MSG_IN_GROUP: 8}.get(
            expected["MsgFlags"], 0
        )
        assert {name: message.md[name] for name in expected} == expected
        assert message.md["Persistence"] == CMQC.MQPER_PERSISTENT
    assert [message.md["MsgId"] for message in found] == sent
    assert recorder.verbs().count("MQCMIT") == (3 if config is PLAIN else 4)
    assert (uplink.sent, uplink.dead, uplink.doubts, uplink.connections) == (8, 0, 0, 1)
    records = [message.data for message in recorder.queues["SYNC"].messages]
    assert records == ([] if config is PLAIN else [b"headwater 3"])


def test_pauses_grow_and_are_longer_when_somebody_has_to_do_something(outbox: Forward) -> None:
    recorder = Recorder(queues(), lambda _number, verb: Fault(2059) if verb == "MQCONNX" else None)
    uplink = Uplink(PLAIN, outbox)
    with recorder:
        pauses = [uplink.step() for _ in range(10)]
    assert all(2.0**n / 2 <= pause <= 2.0**n for n, pause in enumerate(pauses[:6]))
    assert all(30 <= pause <= 60 for pause in pauses[6:])
    recorder = Recorder(queues(), lambda _number, verb: Fault(2035) if verb == "MQCONNX" else None)
    with recorder:
        pauses = [uplink.step() for _ in range(3)]
    assert all(150 <= pause <= 300 for pause in pauses)
    assert uplink.state == "misconfigured"
    recorder = Recorder(queues())
    with recorder:
        assert uplink.step() == uplink.step() == 0.0
    assert uplink.state == "connected"
    assert uplink._failures == 0


def test_a_quiet_connection_is_given_up_until_it_is_needed(outbox: Forward, recorder: Recorder) -> None:
    now = [0.0]
    uplink = Uplink(PLAIN, outbox, clock=lambda: now[0])
    with recorder:
        while outbox.depth():
            uplink.step()
        uplink.step()
        assert uplink.state == "connected"
        now[0] = PLAIN.idle
        uplink.step()
        assert uplink.state == "idle"
        assert recorder.verbs()[-1] == "MQDISC"
        quiet = len(recorder.calls)
        uplink.step()
        assert len(recorder.calls) == quiet
        fill(outbox)
        while outbox.depth():
            uplink.step()
        uplink._drop()
    assert arrived(recorder) == DATA + DATA
    assert recorder.misuse == []


def test_run_ends_when_it_is_told_to(outbox: Forward, recorder: Recorder) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return not outbox.depth()

    with recorder:
        uplink = Uplink(PLAIN, outbox, wait=wait)
        uplink.run()
    assert arrived(recorder) == DATA
    assert (uplink.state, recorder.verbs()[-1]) == ("stopped", "MQDISC")
    assert recorder.misuse == []


def test_all_bits_of_flags_arrive(tmp_path: Path, recorder: Recorder) -> None:
    """Also the highest, which a queue manager accepts: in IBM's package the number is negative then."""
    flags = {"MsgFlags": 0x8000_0000 | CMQC.MQMF_LAST_MSG_IN_GROUP, "Report": 0x8000_0000}
    outbox = opened(tmp_path / "mq.db")
    with outbox.transaction():
        outbox.put(MD(Version=2, GroupId=b"G" * 24, **flags), b"flags")
        outbox.put(MD(Version=2), b"behind")
    run(outbox, RECORDED, recorder)
    assert arrived(recorder) == [b"flags", b"behind"]
    md = recorder.queues["IN"].messages[0].md
    found = {name: md[name] & 0xFFFF_FFFF & ~CMQC.MQMF_MSG_IN_GROUP for name in flags}
    assert found == {**flags, "MsgFlags": flags["MsgFlags"] & ~CMQC.MQMF_MSG_IN_GROUP}
    outbox.close()


def test_a_record_queue_that_is_not_used_any_more_keeps_no_connection(
    outbox: Forward, recorder: Recorder
) -> None:
    """What was in doubt has gone again; only a record could say more of it."""
    outbox.state()
    outbox.number(4)
    outbox.prepare([message.token for message in outbox.batch(3, 1 << 20)])
    now = [0.0]
    uplink = Uplink(PLAIN, outbox, clock=lambda: now[0])
    with recorder:
        for _ in range(20):
            uplink.step()
            now[0] += PLAIN.idle
        assert (uplink.connections, uplink.state) == (1, "idle")
    assert arrived(recorder) == DATA


def test_what_has_expired_is_not_sent(tmp_path: Path, recorder: Recorder) -> None:
    outbox = opened(tmp_path / "mq.db")
    with outbox.transaction() as db:
        outbox.put(MD(Version=2, Expiry=1), b"soon gone")
        outbox.put(MD(Version=2, Expiry=36000), b"fresh")
        db.execute("UPDATE messages SET expires = expires - 1000")
    steps(outbox, PLAIN, recorder, 5)
    (message,) = recorder.queues["IN"].messages
    assert message.data == b"fresh"
    assert 35000 < message.md["Expiry"] < 36000
    outbox.close()


def test_what_is_damaged_is_passed_over(outbox: Forward, recorder: Recorder) -> None:
    second = outbox.batch(2, 1 << 20)[1]
    assert isinstance(second, Stored)
    with outbox.transaction() as db:
        db.execute("UPDATE messages SET body = ? WHERE id = ?", (b"xne", second.token))
    steps(outbox, PLAIN, recorder, 8)
    assert arrived(recorder) == [data for data in DATA if data != b"one"]


def test_an_error_of_ours_is_not_swallowed(outbox: Forward) -> None:
    with pytest.raises(MQMIError, match="2030"), outbox.transaction():
        outbox.put(MD(Version=2), bytes((1 << 20) + 1))
