"""What touches IBM's client: the calls it makes, held against IBM's documentation by the recorder below IBM's package,
and what is said when package or client are not there."""

import subprocess
import sys

import pytest

from headwater_host.mq.uplink import mqi, mqi_reasons
from headwater_host.mq.uplink.mqi import Channel, Connection, MqiError
from tests.host.mq_recorder import Fault, Queue, Recorder
from tests.rows import each_row

pytestmark = [pytest.mark.needs_ibmmq, pytest.mark.needs_cc]
TO = Channel("QM1", "EDGE.SVRCONN", "localhost(1414)")
MESSAGE = {
    "Report": 0,
    "MsgType": 8,
    "Expiry": 600,
    "Feedback": 0,
    "Encoding": 273,
    "CodedCharSetId": 1208,
    "Format": b"MQSTR   ",
    "Priority": 4,
    "Persistence": 1,
    "MsgId": bytes(range(24)),
    "CorrelId": bytes(range(24, 48)),
    "ReplyToQ": b"REPLIES".ljust(48),
    "ReplyToQMgr": b"QM2".ljust(48),
    "GroupId": bytes(range(48, 72)),
    "MsgSeqNumber": 3,
    "Offset": 4096,
    "MsgFlags": 2 | 4 | 8,
    "OriginalLength": 5,
}


def test_the_calls_of_a_unit_of_work() -> None:
    with Recorder({"IN": Queue()}) as recorder:
        link = Connection(TO)
        queue = link.open_output("IN")
        link.put(queue, MESSAGE, b"hello")
        link.put(queue, {**MESSAGE, "PutApplName": b"context is not ours"}, b"")
        link.commit()
        link.put(queue, MESSAGE, b"never committed")
        link.close()
    assert recorder.misuse == []
    verbs = "MQCONNX MQOPEN MQPUT MQPUT MQCMIT MQPUT MQBACK MQDISC"
    assert recorder.verbs()[:8] == verbs.split()
    assert [message.data for message in recorder.queues["IN"].messages] == [b"hello", b""]
    first = recorder.queues["IN"].messages[0].md
    assert {name: first[name] for name in MESSAGE} == MESSAGE
    assert first["Version"] == 2


def test_who_connects_and_how() -> None:
    secure = Channel(
        "QM1", "EDGE", "a(1),b(2)", "me", b"hush", "ANY_TLS12", "/keys/edge.kdb", "edge", "CN=mq*", 7
    )
    with Recorder({}) as recorder:
        Connection(secure).close()
        cd, sco = recorder.connected["cd"], recorder.connected["sco"]
        assert recorder.user == (b"me", b"hush")
        assert recorder.peer_name == b"CN=mq*"
        Connection(TO).close()
        assert recorder.user is None
        assert "sco" not in recorder.connected
    assert recorder.misuse == []
    assert recorder.calls[0].details["name"] == "QM1"
    texts = {name: cd[name].rstrip(b"\0") for name in ("ChannelName", "ConnectionName", "SSLCipherSpec")}
    assert texts == {"ChannelName": b"EDGE", "ConnectionName": b"a(1),b(2)", "SSLCipherSpec": b"ANY_TLS12"}
    assert (cd.HeartbeatInterval, cd.MaxMsgLength) == (7, 100 << 20)
    assert sco.KeyRepository.rstrip(b"\0") == b"/keys/edge.kdb"
    assert recorder.certificate_label == b"edge"


def test_a_record_is_looked_at_and_taken() -> None:
    mine, others = b"m" * 24, b"o" * 24
    with Recorder({"SYNC": Queue()}) as recorder:
        link = Connection(TO)
        queue = link.open_record("SYNC")
        for correl_id, data in ((others, b"1"), (mine, b"2"), (mine, b"3")):
            link.put(queue, {"CorrelId": correl_id}, data)
        link.commit()
        assert link.browse(queue, mine) == [b"2", b"3"]
        assert link.take(queue, mine) == [b"2", b"3"]
        assert link.browse(queue, mine) == []
        link.back_out()
        assert link.browse(queue, mine) == [b"2", b"3"]
        link.close()
    assert recorder.misuse == []


@each_row(
    "verb, reason",
    [
        ("MQCONNX", 2059),
        ("MQOPEN", 2085),
        ("MQPUT", 2053),
        ("MQGET", 2016),
        ("MQCMIT", 2003),
        ("MQBACK", 2009),
    ],
)
def test_what_fails_says_which_call_and_why(verb: str, reason: int) -> None:
    with Recorder({"Q": Queue()}, lambda _number, name: Fault(reason) if name == verb else None) as recorder:

        def use() -> None:
            link = Connection(TO)
            queue = link.open_record("Q")
            link.put(queue, MESSAGE, b"")
            link.browse(queue, b"x" * 24)
            link.commit()
            link.back_out()

        with pytest.raises(MqiError) as caught:
            use()
    assert (caught.value.call, caught.value.reason) == (verb, reason)
    assert str(caught.value) == f"{verb}: {mqi_reasons.text(reason)}"
    assert recorder.misuse == []


def test_a_warning_of_a_put_is_no_failure() -> None:
    fault = Fault(2049, done=True)
    with Recorder({"Q": Queue()}, lambda _number, name: fault if name == "MQPUT" else None) as recorder:
        link = Connection(TO)
        link.put(link.open_output("Q"), MESSAGE, b"x")
        link.commit()
        link.close()
    assert len(recorder.queues["Q"].messages) == 1


def test_the_names_of_reasons_are_ibms() -> None:
    constants = mqi.load().CMQC
    assert {number: name for number, (_, name) in mqi_reasons.REASONS.items()} == {
        getattr(constants, name): name for _, name in mqi_reasons.REASONS.values()
    }
    assert len(mqi_reasons.REASONS) > 90
    assert mqi_reasons.kind(9999) == mqi_reasons.CONNECTION
    assert mqi_reasons.text(9999) == "9999"


def test_the_fields_are_those_that_ibms_package_has() -> None:
    assert set(mqi.FIELDS) <= mqi.load().MD().get().keys()


# ---- without it ------------------------------------------------------------------------------------------------------


def _load_in_a_process(before: str = "") -> str:
    """What ``load`` says in a process of its own, where nobody has put anything at the client's place."""
    program = before + (
        "from headwater_host.exits import CommandError\nfrom headwater_host.mq.uplink import mqi\n"
        "try:\n    mqi.load()\nexcept CommandError as error:\n    print(error.code, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_the_package_is_there_and_the_client_is_not() -> None:
    said = _load_in_a_process()
    assert said.startswith(
        "2 IBM's package ibmmq is installed, but not the client library that it needs (libmqm_r.so"
    )
    assert "redistributable client" in said


def test_the_package_is_not_there() -> None:
    # A finder that knows of no such package, in front of all others.
    hide = (
        "import sys\nclass Hide:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        "        if name == 'ibmmq':\n            raise ModuleNotFoundError(\"No module named 'ibmmq'\", name=name)\n"
        "sys.meta_path.insert(0, Hide)\n"
    )
    said = _load_in_a_process(hide)
    assert said.startswith("2 the uplink needs IBM's package ibmmq and IBM MQ's redistributable client: ")
    assert "pip install 'headwater[ibmmq]'" in said
