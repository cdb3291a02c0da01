"""``headwater mq``: put, get and browse, as a user meets them, on a queue in a file."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.structures import LAYOUTS, decode
from headwater_mq.commands.output import FIELDS
from headwater_mq.manager import QueueManager
from headwater_mq.options import PMO
from tests.host.command import HEADWATER, environment, running
from tests.host.mq_run import GROUP, OTHER, Run

ANY = bytes(range(256))

# -- put and get -------------------------------------------------------------------------------------------------------


def test_what_is_put_is_browsed_and_got_once(mq: Run) -> None:
    assert mq.ok("put", "-m", "one") == b""
    mq.ok("put", "-m", "two", "--priority", 0)
    assert mq.ok("browse") == b"one\ntwo\n"
    assert mq.ok("browse", "-C", 1) == b"one\n"
    assert mq.ok("get") == b"one\n"
    assert mq.ok("get", "-N") == b"two"
    mq("get")
    assert (mq.code, mq.out, mq.err) == (4, b"", "headwater: MQRC_NO_MSG_AVAILABLE (2033): 0 of 1 messages\n")
    assert mq.ok("get", "--all") == b""
    assert mq.ok("browse") == b""
    mq("browse", "-C", 1)
    assert mq.code == 4


def test_where_data_come_from_and_where_they_go(mq: Run, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(ANY)
    mq.ok("put", "-f", file)
    mq.ok("put", "-s", data=ANY + b"s")
    mq.ok("put", "-f", "-", data=ANY + b"-")
    mq.ok("put", "-n")
    mq.ok("put", "-m", "\u00e9")
    mq.ok("put", "-l", data=b"a\r\n\nb")
    want = [ANY, ANY + b"s", ANY + b"-", b"", "\u00e9".encode(), b"a", b"", b"b"]
    shown = mq.lines("browse")
    assert [
        bytes.fromhex(s["payload_hex"]) if "payload_hex" in s else s["payload"].encode() for s in shown
    ] == want
    assert [s["fields"]["Format"] for s in shown] == [" " * 8] * 4 + ["MQSTR   "] * 4
    assert [s["fields"]["CodedCharSetId"] for s in shown] == [819] * 4 + [1208] * 4
    assert mq.ok("get", "--all", "-O", tmp_path / "out") == b""
    assert (tmp_path / "out").read_bytes() == b"".join(want)
    assert mq.ok("browse") == b""


def test_the_descriptor_is_as_asked_for(mq: Run) -> None:
    options = ("--format", "MQADMIN", "--ccsid", 500, "--encoding", 785, "--priority", 7, "--not-persistent")
    (put,) = mq.lines(
        "put", "-n", *options, "--expiry", 100, "--correl-id", GROUP, "--flags", "segmentation_allowed"
    )
    (got,) = mq.lines("browse")
    assert put["queue"] == got["queue"] == "Q"
    assert put["fields"]["MsgId"] == got["fields"]["MsgId"] != "0" * 48
    want = {
        "Version": 2,
        "Format": "MQADMIN ",
        "CodedCharSetId": 500,
        "Encoding": 785,
        "Priority": 7,
        "Persistence": 0,
        "CorrelId": GROUP,
        "MsgFlags": 1,
    }
    assert {name: got["fields"][name] for name in want} == want
    assert 900 < got["fields"]["Expiry"] <= 1000


# -- groups and segments -----------------------------------------------------------------------------------------------


def test_lines_as_a_group(mq: Run) -> None:
    mq.ok("put", "-l", "--as-group", data=b"a\nb\nc")
    shown = mq.fields()
    assert [(s["MsgSeqNumber"], s["MsgFlags"]) for s in shown] == [(1, 8), (2, 8), (3, 24)]
    assert len({s["GroupId"] for s in shown}) == 1
    assert shown[0]["GroupId"] != "0" * 48
    mq.ok("put", "-l", "--as-group", "--group", GROUP, "--seq", 5, data=b"d\ne\n")
    shown = mq.fields("--group", GROUP)
    assert [(s["MsgSeqNumber"], s["MsgFlags"]) for s in shown] == [(5, 8), (6, 24)]


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250, 300])
def test_a_file_in_segments(mq: Run, size: int, tmp_path: Path) -> None:
    data = (ANY * 2)[:size]
    mq.ok("put", "-s", "--segment-size", 100, data=data)
    shown = mq.fields()
    starts = list(range(0, size, 100)) or [0]
    assert [s["Offset"] for s in shown] == starts
    assert [s["MsgFlags"] for s in shown] == [2] * (len(starts) - 1) + [6]
    assert len({s["GroupId"] for s in shown}) == 1
    whole = mq.lines("browse", "--complete")
    assert len(whole) == 1
    mq.ok("get", "--complete", "-O", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    assert mq.ok("browse") == b""


def test_each_line_in_segments_is_a_message_of_its_own_unless_they_are_a_group(mq: Run) -> None:
    mq.ok("put", "-l", "--segment-size", 2, data=b"abc\nde\n")
    shown = mq.fields()
    assert [(s["Offset"], s["MsgFlags"]) for s in shown] == [(0, 2), (2, 6), (0, 6)]
    assert shown[0]["GroupId"] == shown[1]["GroupId"] != shown[2]["GroupId"]
    mq.ok("get", "--all")
    mq.ok("put", "-l", "--segment-size", 2, "--as-group", data=b"abc\nde\n")
    shown = mq.fields()
    assert [(s["MsgSeqNumber"], s["Offset"], s["MsgFlags"]) for s in shown] == [
        (1, 0, 10),
        (1, 2, 14),
        (2, 0, 30),
    ]
    assert len({s["GroupId"] for s in shown}) == 1
    assert mq.ok("get", "--all", "--complete", "--logical-order") == b"abc\nde\n"


def test_a_group_is_put_as_a_whole_or_not_at_all(mq: Run) -> None:
    mq.ok("put", "-m", "before")
    mq("put", "-l", "--as-group", "--seq", 999_999_998, data=b"a\nb\nc\n")
    assert (mq.code, mq.err.count("\n")) == (1, 1)
    assert "MQRC_MSG_SEQ_NUMBER_ERROR (2250)" in mq.err
    assert mq.ok("browse") == b"before\n"


def test_only_what_is_there_as_a_whole(mq: Run) -> None:
    mq.ok("put", "-m", "2", "--group", GROUP, "--seq", 2, "--flags", "LAST_MSG_IN_GROUP")
    mq.ok("put", "-m", "s", "--group", OTHER, "--flags", "MQMF_SEGMENT")
    assert mq.ok("browse", "--all-messages", "--all-segments") == b""
    mq("get", "--complete", "--group", OTHER)
    assert mq.code == 4
    mq.ok("put", "-m", "1", "--group", GROUP, "--flags", "msg_in_group")
    mq.ok("put", "-m", "t", "--group", OTHER, "--offset", 1, "--flags", "SEGMENT|LAST_SEGMENT")
    assert mq.ok("get", "--all", "--all-messages", "--logical-order", "--group", GROUP) == b"1\n2\n"
    assert mq.ok("get", "--complete", "--group", OTHER) == b"st\n"


def test_which_messages(mq: Run) -> None:
    for seq in (1, 2):
        mq.ok("put", "-m", f"g{seq}", "--group", GROUP, "--seq", seq, "--flags", "MSG_IN_GROUP")
    (one,) = mq.lines("put", "-m", "i", "--correl-id", OTHER)
    assert mq.ok("browse", "--group", GROUP, "--seq", 2) == b"g2\n"
    assert mq.ok("browse", "--correl-id", OTHER) == b"i\n"
    assert mq.ok("browse", "--msg-id", one["fields"]["MsgId"]) == b"i\n"
    assert mq.ok("get", "--seq", 2) == b"g2\n"
    assert mq.ok("browse", "--offset", 0) == b"g1\ni\n"


def test_version_1_is_told_by_an_extension_in_front(mq: Run) -> None:
    mq.ok("put", "-m", "data", "--group", GROUP, "--seq", 7, "--flags", "MSG_IN_GROUP")
    (shown,) = mq.lines("browse", "--md-version", 1)
    assert shown["fields"]["Format"] == "MQHMDE  "
    assert "GroupId" not in shown["fields"]
    raw = mq.ok("get", "--md-version", 1, "-N")
    extension = decode(LAYOUTS["MQMDE"], raw, big=False, ccsid=819)
    assert (extension["GroupId"], extension["MsgSeqNumber"]) == (bytes(range(24)), 7)
    assert raw[72:] == b"data"
    # And the other way round.
    mq.ok("put", "-s", "--md-version", 1, "--format", "MQHMDE", data=raw)
    (shown,) = mq.lines("browse")
    assert (shown["payload"], shown["fields"]["GroupId"], shown["fields"]["MsgSeqNumber"]) == (
        "data",
        GROUP,
        7,
    )


# -- output ------------------------------------------------------------------------------------------------------------


def test_formats(mq: Run) -> None:
    mq.ok("put", "-m", "hello", "--group", GROUP, "--seq", 3, "--flags", "MSG_IN_GROUP", "--priority", 4)
    assert mq.ok("browse", "-v") == f"MQSTR {GROUP} 3 0 hello\n".encode()
    assert mq.ok("browse", "-F", "%t|%p|%x|%l|%f|%g|%s|%o|%m|%n|%%") == (
        f"Q|hello|68656c6c6f|5|MQSTR|{GROUP}|3|0|MSG_IN_GROUP|4|%\n".encode()
    )
    assert mq.ok("browse", "-F", "%04s %-6f|%.2p", "-N") == b"0003 MQSTR |he"
    before = time.time()
    seconds = float(mq.ok("browse", "-F", "%U"))
    assert before - 60 < seconds <= time.time() + 1
    assert mq.ok("browse", "-F", "%I @Y") == mq.ok("browse", "-F", "@Y-@m-@dT@H:@M:@S@z %.4I")
    assert json.loads(mq.ok("browse", "-F", "%j")) == mq.lines("browse")[0]
    assert mq.ok("browse", "-F", " ".join(f"%{letter}" for letter in FIELDS)).startswith(b"Q hello 68")


def test_a_file_and_a_line(mq: Run, tmp_path: Path) -> None:
    mq.ok("put", "-m", "hello")
    assert mq.ok("browse", "-O", tmp_path / "out", "-v") == b"MQSTR " + b"0" * 48 + b" 1 0\n"
    assert (tmp_path / "out").read_bytes() == b"hello"
    # What is no file is not synchronised with a disk.
    assert mq.ok("browse", "-O", "/dev/null") == b""


def test_what_cannot_be_written_stays(mq: Run) -> None:
    mq.ok("put", "-m", "hello")
    words = [*HEADWATER, "mq", "get", "--store", str(mq.store), "--queue", "Q"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (1, b"headwater: No space left on device\n")
    mq("get", "-O", "/dev/full")
    assert (mq.code, mq.err) == (1, "headwater: cannot write /dev/full: No space left on device\n")
    mq("get", "-O", mq.store.parent / "no" / "folder")
    assert (mq.code, mq.err.startswith("headwater: cannot open")) == (2, True)
    assert mq.ok("get") == b"hello\n"


def test_what_a_reader_has_not_seen_stays(mq: Run) -> None:
    """Of messages that are larger than a pipe, one is read; the next cannot have been written."""
    size = 300_000
    for letter in (b"a", b"b"):
        mq.ok("put", "-s", data=letter * size)
    words = [*HEADWATER, "mq", "get", "--store", str(mq.store), "--queue", "Q", "--all"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as getting:
        assert getting.stdout
        assert getting.stderr
        assert getting.stdout.read(size + 1) == b"a" * size + b"\n"
        getting.stdout.close()
        assert getting.wait(200) == 0
        assert getting.stderr.read() == b""
    assert mq.ok("get", "--all", "-F", "%.1p %l") == f"b {size}\n".encode()


def test_a_reader_that_has_seen_enough_ends_waiting(mq: Run) -> None:
    mq.ok("put", "-m", "one")
    words = [*HEADWATER, "mq", "get", "--store", str(mq.store), "--queue", "Q", "--all", "--wait", "3600"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as getting:
        assert getting.stdout
        assert getting.stderr
        assert getting.stdout.readline() == b"one\n"
        getting.stdout.close()
        assert getting.wait(60) == 0
        assert getting.stderr.read() == b""


def test_a_file_is_kept_until_there_is_a_message(mq: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mq.ok("put", "-m", "the first")
    mq.ok("get", "-O", out)
    mq("get", "-O", out)
    assert (mq.code, out.read_bytes()) == (4, b"the first")
    mq("get", "-O", out, queue="NONE")
    assert (mq.code, out.read_bytes()) == (1, b"the first")
    mq.ok("put", "-m", "2nd")
    mq.ok("put", "-m", ".")
    mq.ok("get", "--all", "-O", out)
    assert out.read_bytes() == b"2nd."


def test_nobody_knows_when(mq: Run) -> None:
    with QueueManager(path=mq.store) as manager:
        manager.define("Q")
        manager.put1("Q", b"timeless", MD(), PMO(Options=CMQC.MQPMO_NO_CONTEXT))
    assert mq.ok("browse", "-F", "%p [%I%U@Y]") == b"timeless []\n"


def test_waiting(mq: Run, tmp_path: Path) -> None:
    mq.ok("put", "-m", "first")
    words = ["mq", "get", "--store", mq.store, "--queue", "Q", "-C", 2, "-W", 100]
    with running(*words, directory=tmp_path) as getting:
        while getting.output != b"first\n":
            assert getting.process.poll() is None, getting.errors
            time.sleep(0.01)
        mq.ok("put", "-m", "second")
        assert getting.wait(100) == 0
        assert getting.output == b"first\nsecond\n"
    mq("get", "-W", 0.2)
    assert (mq.code, mq.err.count("2033")) == (4, 1)


def test_two_put_to_a_queue_that_is_not_there(mq: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finds none; then the other makes it."""
    queues = QueueManager.queues

    def then_it_is_made(self: QueueManager) -> object:
        found = queues(self)
        monkeypatch.setattr(QueueManager, "queues", queues)
        mq.ok("put", "-m", "other", "--define")
        return found

    for words in ((), ("--define",)):
        monkeypatch.setattr(QueueManager, "queues", then_it_is_made)
        mq.ok("put", "-m", "one", *words)
        assert mq.ok("get", "--all") == b"other\none\n"
        with QueueManager(path=mq.store) as manager:
            manager.delete("Q")


def test_a_file_that_another_has_only_begun_is_new(mq: Run) -> None:
    mq.store.touch()
    mq("get")
    assert (mq.code, mq.err.count("is empty")) == (1, 1)
    mq.ok("put", "-m", "to an empty file")
    with QueueManager(path=mq.store) as manager:
        manager.delete("Q", purge=True)
    mq.ok("put", "-m", "to a file without queues")
    mq("put", "-m", "no", queue="OTHER")
    assert (mq.code, mq.err.count("--define creates it")) == (1, 1)
    assert mq.ok("get", "--all") == b"to a file without queues\n"
