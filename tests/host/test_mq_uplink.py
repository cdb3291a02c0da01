"""The uplink, from the file of local queues to a recorded queue manager, with a failure at every call in turn."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.ibmmq.layouts import MQDLH
from headwater_host.ibmmq import CMQC, structures
from headwater_host.ibmmq.errors import MQMIError, failed
from headwater_host.ibmmq.queue.descriptors import MD
from headwater_host.ibmmq.uplink import mqi
from headwater_host.ibmmq.uplink.forward import Forward, LocalQueue
from headwater_host.ibmmq.uplink.uplink import Stored, Uplink, UplinkConfig
from tests.host.mq_recorder import Fault, Queue, Recorder

pytestmark = [pytest.mark.needs_ibmmq, pytest.mark.needs_cc]

TO = mqi.Channel("QM1", "EDGE.SVRCONN", "localhost(1414)")
ROOM = LocalQueue("EDGE", "DEAD", 1000, 1 << 20, 64 << 20)
# Units of work are small, so that a handful of messages is several.
PLAIN = UplinkConfig(TO, "IN", batch=3)
RECORDED = UplinkConfig(TO, "IN", "SYNC", batch=3)
#: Two groups, one of segments, and messages of their own between.
GROUP = [b"G" * 24, b"H" * 24]
MESSAGES: list[tuple[dict[str, Any], bytes]] = [
    ({}, b"first"),
    ({"GroupId": GROUP[0], "MsgSeqNumber": 1, "MsgFlags": CMQC.MQMF_MSG_IN_GROUP}, b"one"),
    ({"GroupId": GROUP[0], "MsgSeqNumber": 2, "MsgFlags": CMQC.MQMF_MSG_IN_GROUP}, b"two"),
    ({"GroupId": GROUP[1], "MsgFlags": CMQC.MQMF_SEGMENT}, b"0123456789abcdef"),
    ({"GroupId": GROUP[1], "Offset": 16, "MsgFlags": CMQC.MQMF_LAST_SEGMENT}, b"rest"),
    ({}, b""),
    ({"GroupId": GROUP[0], "MsgSeqNumber": 3, "MsgFlags": CMQC.MQMF_LAST_MSG_IN_GROUP}, b"three"),
    ({}, b"last"),
]  # fmt: skip
DATA = [data for _, data in MESSAGES]


def opened(path: Path, room: LocalQueue = ROOM) -> Forward:
    """What is not to be tested here is that SQLite waits for the disk."""
    outbox = Forward(path, room)
    outbox.file.db.execute("PRAGMA synchronous = OFF")
    return outbox


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Forward]:
    found = opened(tmp_path / "mq.db")
    fill(found)
    yield found
    found.close()


def fill(outbox: Forward) -> None:
    with outbox.transaction():
        for fields, data in MESSAGES:
            outbox.put(MD(Version=2, **fields), data)


def queues() -> dict[str, Queue]:
    return {"IN": Queue(), "SYNC": Queue()}


def failing(faults: dict[int, Fault]) -> Callable[[int, str], Fault | None]:
    return lambda number, _verb: faults.get(number)


def run(
    outbox: Any,
    config: UplinkConfig,
    recorder: Recorder,
    steps: int = 400,
    stop: Callable[[], bool] = lambda: False,
) -> Uplink:
    """Let an uplink work until there is nothing left to do; its pauses take no time."""
    uplink = Uplink(config, outbox)
    with recorder:
        for _ in range(steps):
            uplink.step()
            if stop() or (not outbox.depth() and not outbox.state().pending):
                break
        else:
            raise AssertionError(f"it does not come to an end: {uplink.status()}, {recorder.verbs()[-30:]}")
        uplink._drop()
    assert recorder.misuse == []
    return uplink


def arrived(recorder: Recorder) -> list[bytes]:
    return [message.data for message in recorder.queues["IN"].messages]


@pytest.mark.parametrize("config", [PLAIN, RECORDED], ids=["plain", "recorded"])
def test_everything_arrives_whole_and_in_order(outbox: Forward, config: UplinkConfig) -> None:
    sent = [stored.fields["MsgId"] for stored in outbox.batch(100, 1 << 20)]
    recorder = Recorder(queues())
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


def _calls(config: UplinkConfig, folder: Path) -> list[str]:
    """The calls of a run in which nothing fails."""
    outbox = opened(folder / "calls.db")
    fill(outbox)
    recorder = Recorder(queues())
    run(outbox, config, recorder)
    outbox.close()
    return recorder.verbs()


#: What may go wrong at a call: the connection is lost before or behind its effect, or the call fails.
_FAULTS = [
    Fault(2009, dies=True),
    Fault(2009, dies=True, done=True),
    Fault(2009, dies=True, late=4),
    Fault(2162, dies=True),
    Fault(2003),
    Fault(2053),
    Fault(2085),
    Fault(2195),
    Fault(2024),
    Fault(9999),
]


@pytest.mark.parametrize(
    "config, fault",
    # Without a record only what becomes of MQCMIT differs.
    [(RECORDED, fault) for fault in _FAULTS] + [(PLAIN, fault) for fault in _FAULTS[:3]],
    ids=lambda value: "recorded" if value == RECORDED else "plain" if value == PLAIN else str(value),
)
def test_a_failure_at_any_call(tmp_path: Path, config: UplinkConfig, fault: Fault) -> None:
    calls = _calls(config, tmp_path)
    outbox = opened(tmp_path / "mq.db")
    for at, verb in enumerate(calls):
        if verb in ("MQDISC", "MQCLOSE") or (fault.done and verb == "MQPUT" and not fault.dies):
            continue
        outbox.begin_again()
        fill(outbox)
        recorder = Recorder(queues(), failing({at: fault}))
        uplink = run(outbox, config, recorder)
        found = arrived(recorder)
        assert set(found) == set(DATA), (at, verb)
        assert uplink.dead == 0
        if config.record_queue:
            assert found == DATA, (at, verb)
        elif verb == "MQCMIT":
            # Sent again, with the same MsgId: whoever wants them once can tell.
            ids = [message.md["MsgId"] for message in recorder.queues["IN"].messages]
            assert [found[number] for number, one in enumerate(ids) if one not in ids[:number]] == DATA
            assert max(Counter(ids).values()) <= 2
        else:
            assert found == DATA, (at, verb)
    outbox.close()


@pytest.mark.parametrize("seed", range(3))
def test_failures_one_behind_the_other(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    outbox = opened(tmp_path / "mq.db")
    for _ in range(6):
        outbox.begin_again()
        fill(outbox)
        faults = {number: rng.choice(_FAULTS) for number in range(200) if rng.random() < 0.2}
        recorder = Recorder(queues(), failing(faults))
        run(outbox, RECORDED, recorder)
        assert arrived(recorder) == DATA
    outbox.close()


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """An outbox of a process that ends before or behind one of its changes."""

    def __init__(self, outbox: Forward, at: int):
        self._outbox = outbox
        self._at = at
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        if name not in ("settle", "prepare", "number"):
            return getattr(self._outbox, name)

        def change(*arguments: Any) -> None:
            self.changes += 1
            if self.changes * 2 - 1 == self._at:
                raise Killed
            getattr(self._outbox, name)(*arguments)
            if self.changes * 2 == self._at:
                raise Killed

        return change


def test_the_process_ends_at_any_change(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "mq.db")
    deaths = 0
    for at in range(1, 40):
        outbox.begin_again()
        fill(outbox)
        recorder = Recorder(queues())
        mortal = Mortal(outbox, at)
        uplink = Uplink(RECORDED, mortal)
        try:
            with recorder:
                while outbox.depth() or outbox.state().pending:
                    uplink.step()
        except Killed:
            deaths += 1
        # The queue manager notices that nobody is there any more.
        with recorder:
            uplink._drop()
        run(outbox, RECORDED, recorder)
        assert arrived(recorder) == DATA, at
    assert deaths > 10
    outbox.close()


def test_a_commit_that_is_on_its_way_is_waited_for(outbox: Forward) -> None:
    """The connection is lost in MQCMIT, and the queue manager does it only after the uplink is back."""
    calls = _calls(RECORDED, Path(outbox.file.path).parent)
    at = [number for number, verb in enumerate(calls) if verb == "MQCMIT"][1]
    fault = Fault(2009, dies=True, late=12)
    recorder = Recorder(queues(), lambda number, _verb: fault if number == at else None)
    uplink = run(outbox, RECORDED, recorder)
    assert arrived(recorder) == DATA
    assert uplink.doubts == 1
    # It looked for the record before it was there again.
    assert uplink.connections > 2


# ---- what the queue manager does not want ---------------------------------------------------------------------------


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
    outbox: Forward, config: UplinkConfig
) -> None:
    recorder = Recorder(queues())
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
def test_a_full_queue_is_filled_again_when_there_is_room(outbox: Forward, config: UplinkConfig) -> None:
    recorder = Recorder(queues())
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


@pytest.mark.parametrize("most", [2, 3])
def test_a_queue_manager_that_takes_few_at_a_time(outbox: Forward, most: int) -> None:
    # With three it takes the messages, and not the record behind them.
    recorder = Recorder(queues())
    puts: list[int] = []

    def limit(number: int, verb: str) -> Fault | None:
        puts[:] = [*puts, number] if verb == "MQPUT" else [] if verb in ("MQCMIT", "MQBACK") else puts
        return Fault(2024) if verb == "MQPUT" and len(puts) > most else None

    recorder._fault = limit
    run(outbox, RECORDED, recorder)
    assert arrived(recorder) == DATA


@pytest.mark.parametrize(
    "record, says",
    [(b"headwater 7", "says 7, the local queue 3"), (b"other", "none of ours")],
)
def test_a_record_that_cannot_be_is_not_believed(outbox: Forward, record: bytes, says: str) -> None:
    recorder = Recorder(queues())
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


def test_a_record_that_is_gone_is_waited_for(outbox: Forward) -> None:
    recorder = Recorder(queues())
    run(outbox, RECORDED, recorder)
    record = recorder.queues["SYNC"].messages.pop()
    fill(outbox)
    uplink = run(outbox, RECORDED, recorder, stop=lambda: len(recorder.calls) > 60)
    assert arrived(recorder) == DATA
    assert "there is no record of this queue on SYNC" in str(uplink.last_error)
    recorder.queues["SYNC"].messages.append(record)
    run(outbox, RECORDED, recorder)
    assert arrived(recorder) == DATA + DATA


# ---- pauses ---------------------------------------------------------------------------------------------------------


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


def test_a_quiet_connection_is_given_up_until_it_is_needed(outbox: Forward) -> None:
    recorder = Recorder(queues())
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


def test_run_ends_when_it_is_told_to(outbox: Forward) -> None:
    recorder = Recorder(queues())
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


# ---- the file -------------------------------------------------------------------------------------------------------


class Failing:
    """An outbox the file of which is in trouble, a few times."""

    def __init__(self, outbox: Forward, name: str):
        self._outbox = outbox
        self._name = name
        self.left = 3

    def __getattr__(self, name: str) -> Any:
        def fail(*arguments: Any) -> Any:
            if name == self._name and self.left:
                self.left -= 1
                raise failed(CMQC.MQRC_STORAGE_MEDIUM_FULL, "the disk is full")
            return getattr(self._outbox, name)(*arguments)

        return fail


@pytest.mark.parametrize("config", [PLAIN, RECORDED], ids=["plain", "recorded"])
@pytest.mark.parametrize("name", ["batch", "settle", "prepare", "number", "state"])
def test_a_file_in_trouble_costs_nothing(outbox: Forward, config: UplinkConfig, name: str) -> None:
    recorder = Recorder(queues())
    broken = Failing(outbox, name)
    uplink = Uplink(config, broken)
    with recorder:
        for _ in range(60):
            uplink.step()
        uplink._drop()
    assert arrived(recorder) == DATA
    assert recorder.misuse == []
    if broken.left < 3:
        assert "the disk is full" in str(uplink.last_error)


def test_what_has_expired_is_not_sent(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "mq.db")
    with outbox.transaction() as db:
        outbox.put(MD(Version=2, Expiry=1), b"soon gone")
        outbox.put(MD(Version=2, Expiry=36000), b"fresh")
        db.execute("UPDATE messages SET expires = expires - 1000")
    recorder = Recorder(queues())
    uplink = Uplink(PLAIN, outbox)
    with recorder:
        for _ in range(5):
            uplink.step()
        uplink._drop()
    (message,) = recorder.queues["IN"].messages
    assert message.data == b"fresh"
    assert 35000 < message.md["Expiry"] < 36000
    outbox.close()


def test_what_is_damaged_is_passed_over(outbox: Forward) -> None:
    second = outbox.batch(2, 1 << 20)[1]
    assert isinstance(second, Stored)
    with outbox.transaction() as db:
        db.execute("UPDATE messages SET body = ? WHERE id = ?", (b"xne", second.token))
    recorder = Recorder(queues())
    uplink = Uplink(PLAIN, outbox)
    with recorder:
        for _ in range(8):
            uplink.step()
        uplink._drop()
    assert arrived(recorder) == [data for data in DATA if data != b"one"]


def test_no_room_in_the_dead_letter_queue_stops_the_uplink(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "mq.db", LocalQueue("EDGE", "DEAD", 8, 1 << 20, 64 << 20))
    fill(outbox)
    with outbox.transaction():
        for _ in range(8):
            outbox.set_aside(MD(Version=2), b"x", 1)
    recorder = Recorder(queues())
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


def test_an_error_of_ours_is_not_swallowed(outbox: Forward) -> None:
    with pytest.raises(MQMIError, match="2030"), outbox.transaction():
        outbox.put(MD(Version=2), bytes((1 << 20) + 1))
