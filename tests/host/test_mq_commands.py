"""``headwater mq``: put, get, browse and stats, as a user meets them, on a queue in a file."""

import argparse
import contextlib
import io
import json
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater_host import cli
from headwater_host.commands import mq as command
from headwater_host.commands.mq_output import FIELDS
from headwater_host.ibmmq import CMQC
from headwater_host.ibmmq.queue.descriptors import GMO, MD, PMO
from headwater_host.ibmmq.queue.manager import QueueManager
from headwater_host.ibmmq.queue.queue import Queue
from headwater_host.ibmmq.reassembly.assembler import Assembler
from headwater_host.ibmmq.structures import LAYOUTS, decode, encode
from tests.host.command import HEADWATER, environment, running
from tests.host.mq_segments import cut
from tools.toolchain import ROOT

GROUP = bytes(range(24)).hex()
OTHER = bytes(range(100, 124)).hex()
ANY = bytes(range(256))


class Run:
    """``headwater mq`` on one queue, run in this process."""

    def __init__(self, path: Path):
        self.store = path / "queues.db"
        self.code: object = 0
        self.out = b""
        self.err = ""

    def __call__(self, name: str, *options: object, data: bytes = b"", queue: str = "Q") -> "Run":
        words = [
            "mq",
            name,
            "--store",
            str(self.store),
            *(["--queue", queue] if queue else []),
            *map(str, options),
        ]
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
        err = io.StringIO()
        stdin = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self.code = cli.main(words)
                out.flush()
        except SystemExit as end:
            self.code = end.code
        finally:
            sys.stdin = stdin
        out.seek(0)
        self.out, self.err = out.buffer.read(), err.getvalue()
        return self

    def ok(self, name: str, *options: object, data: bytes = b"", queue: str = "Q") -> bytes:
        self(name, *options, data=data, queue=queue)
        assert (self.code, self.err) == (0, "")
        return self.out

    def lines(self, name: str, *options: object) -> list[dict[str, Any]]:
        """What ``--json`` says."""
        return [json.loads(line) for line in self.ok(name, *options, "--json").splitlines()]

    def fields(self, *options: object) -> list[dict[str, Any]]:
        return [line["fields"] for line in self.lines("browse", *options)]


@pytest.fixture
def mq(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With a message that stays."""
    made = Run(tmp_path_factory.mktemp("kept"))
    made.ok("put", "-m", "there")
    return made


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
    assert (done.returncode, done.stderr) == (1, b"headwater: [Errno 28] No space left on device\n")
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
        assert getting.wait(30) == 0
        assert getting.stderr.read() == b""
    assert mq.ok("get", "--all", "-F", "%.1p %l") == f"b {size}\n".encode()


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
    words = ["mq", "get", "--store", mq.store, "--queue", "Q", "-C", 2, "-W", 30]
    with running(*words, directory=tmp_path) as getting:
        while getting.output != b"first\n":
            assert getting.process.poll() is None, getting.errors
            time.sleep(0.01)
        mq.ok("put", "-m", "second")
        assert getting.wait(20) == 0
        assert getting.output == b"first\nsecond\n"
    begun = time.monotonic()
    mq("get", "-W", 0.2)
    assert (mq.code, mq.err.count("2033")) == (4, 1)
    assert 0.2 <= time.monotonic() - begun < 10


# -- stats -------------------------------------------------------------------------------------------------------------


def test_stats(mq: Run) -> None:
    mq.ok("put", "-m", "12345")
    mq.ok("put", "-l", "--as-group", data=b"a\nb\n")
    mq.ok("put", "-m", "x", "--group", GROUP, "--seq", 3, "--flags", "LAST_MSG_IN_GROUP")
    mq.ok("put", "-m", "y", "--group", OTHER, "--offset", 10, "--flags", "LAST_SEGMENT")
    mq.ok("put", "-s", "--segment-size", 3, data=b"abcdefg")
    dead = encode(LAYOUTS["MQDLH"], {"Reason": 2053}, big=False, ccsid=819)
    mq.ok("put", "-s", "--format", "MQDEAD", data=dead)
    mq.ok("put", "-n", "--define", queue="EMPTY")
    mq.ok("get", queue="EMPTY")
    (said,) = mq.lines("stats")
    assert said.pop("oldest")[:2] == "20"
    (lacking,) = said["groups"].pop("incomplete")
    (cut,) = said["segmented"].pop("incomplete")
    assert said == {
        "queue": "Q",
        "messages": 9,
        "bytes": 5 + 2 + 1 + 1 + 7 + 172,
        "in_units_of_work": 0,
        "dead_letters": 1,
        "set_aside": {},
        "groups": {"complete": 1},
        "segmented": {"complete": 1},
    }
    assert (lacking["group_id"], lacking["reason"], lacking["bytes"]) == (GROUP, 2241, 1)
    assert lacking["missing"]["messages"] == [[1, 3]]
    assert (cut["group_id"], cut["reason"], cut["missing"]["segments"]) == (OTHER, 2242, {"1": [[0, 10]]})
    empty, full = (json.loads(line) for line in mq.ok("stats", "--json", queue="").splitlines())
    assert (empty["queue"], empty["messages"], empty["oldest"]) == ("EMPTY", 0, None)
    assert (full["queue"], full["messages"]) == ("Q", 9)
    text = mq.ok("stats", queue="").decode().splitlines()
    assert text[0] == "EMPTY: 0 messages, 0 bytes"
    assert re.fullmatch(r"Q: 9 messages, 188 bytes, the oldest of \S+Z, 1 dead letter", text[1])
    assert text[2] == "  groups: 1 complete, 1 incomplete"
    assert text[3] == f"    {GROUP}: missing: messages 1 to 2 (2241 MQRC_INCOMPLETE_GROUP)"
    assert text[4] == "  segmented messages: 1 complete, 1 incomplete"
    assert text[5] == f"    {OTHER}: missing: of message 1 bytes 0 to 9 (2242 MQRC_INCOMPLETE_MSG)"


def test_stats_of_what_is_under_way(mq: Run) -> None:
    """The oldest message, groups whose messages came among others', and what is in somebody's unit of work."""
    with QueueManager(path=mq.store, clock=lambda: 1e9) as manager:
        manager.define("Q")
        manager.put1("Q", b"old")
    mq.ok("put", "-m", "1", "--group", GROUP, "--flags", "MSG_IN_GROUP")
    mq.ok("put", "-m", "1", "--group", OTHER, "--flags", "MSG_IN_GROUP")
    mq.ok("put", "-m", "2", "--group", GROUP, "--seq", 2, "--flags", "LAST_MSG_IN_GROUP")
    (said,) = mq.lines("stats")
    assert (said["groups"]["complete"], len(said["groups"]["incomplete"])) == (1, 1)
    assert said["oldest"] == "2001-09-09T01:46:40Z"
    with QueueManager(path=mq.store) as manager:
        assert Queue(manager, "Q").get(None, MD(), GMO(Options=CMQC.MQGMO_SYNCPOINT)) == b"old"
        manager.put1("Q", b"new", MD(), PMO(Options=CMQC.MQPMO_SYNCPOINT))
        (said,) = mq.lines("stats")
        assert (said["messages"], said["in_units_of_work"]) == (3, 2)
        assert said["oldest"] > "2020"
        assert ", 2 in units of work" in mq.ok("stats").decode()
        manager.backout()


def test_stats_of_what_contradicts_itself(mq: Run) -> None:
    for text in ("ab", "xyz"):
        mq.ok("put", "-m", text, "--group", GROUP, "--flags", "LAST_SEGMENT")
    (said,) = mq.lines("stats")
    (one,) = said["segmented"]["incomplete"]
    assert one["fault"]["kind"] == "ends"
    mq.ok("browse", "--complete")
    mq("get", "--complete")
    (said,) = mq.lines("stats")
    assert said["messages"] + sum(said["set_aside"].values()) == 2
    if said["set_aside"]:
        assert "set aside" in mq.ok("stats").decode()


def test_stats_of_what_a_gateway_has_not_put_together(mq: Run) -> None:
    mq.ok("put", "-m", "x")
    before = mq.ok("stats", queue="")
    group, other = bytes.fromhex(GROUP), bytes.fromhex(OTHER)
    with contextlib.closing(sqlite3.connect(mq.store)) as db:
        assembler = Assembler(db)
        assembler.flush()
        db.commit()
        assert mq.ok("stats", queue="") == before
        assembler.add("a/b", cut(group, 3, b"123", 9, grouped=True)[0], 1.0)
        assembler.add("c", cut(other, 1, b"12345", 2)[1], 2.0)
        assembler.flush()
        db.commit()
        file = list(db.iterdump())
        assert mq.ok("stats") == before
        assert mq.ok("stats", queue="").removeprefix(before).decode().splitlines() == [
            "not put together yet: 2",
            f"    a/b, GroupId {GROUP}: incomplete, missing: messages 1 to 2, 4 to the last, which is not known "
            "(2241 MQRC_INCOMPLETE_GROUP)",
            f"    c, GroupId {OTHER}: incomplete, missing: of message 1 bytes 0 to 1, 4 to its end, which is not known "
            "(2242 MQRC_INCOMPLETE_MSG)",
        ]
        queue, held = map(json.loads, mq.ok("stats", "--json", queue="").splitlines())
        assert (queue["queue"], [one["group_id"] for one in held["reassembly"]]) == ("Q", [GROUP, OTHER])
        # What was looked at is still there, and goes on.
        assert [row for row in db.iterdump() if "assembly" in row] == [
            row for row in file if "assembly" in row
        ]


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, code, says",
    [
        (["put", "-m", "x", "--seq", "0", "--flags", "MSG_IN_GROUP"], 1, "MQRC_MSG_SEQ_NUMBER_ERROR (2250)"),
        (["put", "-m", "x", "--offset", "-1", "--flags", "SEGMENT"], 1, "MQRC_OFFSET_ERROR (2251)"),
        (["put", "-n", "--flags", "SEGMENT"], 1, "MQRC_SEGMENT_LENGTH_ZERO (2253)"),
        (["put", "-m", "no", "--format", "MQHMDE", "--ccsid", "819"], 1, "MQRC_MDE_ERROR (2248)"),
        (["put", "-m", "x", "--queue", "OTHER"], 1, "MQRC_UNKNOWN_OBJECT_NAME (2085): OTHER is not defined"),
        (["get", "--queue", "OTHER"], 1, "MQRC_UNKNOWN_OBJECT_NAME (2085)"),
        (["stats", "--queue", "OTHER"], 1, "MQRC_UNKNOWN_OBJECT_NAME (2085)"),
        (["put"], 2, "one of the arguments -m/--message"),
        (["put", "-m", "x", "-n"], 2, "not allowed with argument"),
        (["put", "-m", "x", "--queue", "a b"], 2, "'a b' is not 1 to 48 of"),
        (["put", "-m", "x", "--group", "00"], 2, "'00' is not 24 bytes in hexadecimal"),
        (["put", "-m", "x", "--flags", "LAST"], 2, "'LAST' is no flag: SEGMENTATION_ALLOWED"),
        (["put", "-m", "x", "--format", "ninechars"], 2, "'ninechars' is not a Format: at most 8 characters"),
        (["put", "-m", "x", "--format", "\u00e9"], 2, "'\u00e9' is not a Format"),
        (
            ["put", "-m", "x", "--seq", "4294967296"],
            2,
            "is not a whole number from -2147483648 to 2147483647",
        ),
        (["put", "-m", "x", "--segment-size", "0"], 2, "'0' is not a whole number from 1"),
        (["put", "-m", "x", "--as-group"], 2, "--as-group is for -l"),
        (["put", "-l", "--group", GROUP], 2, "--group with -l needs --as-group"),
        (["put", "-m", "x", "--md-version", "1", "--seq", "2"], 2, "need --md-version 2"),
        (["put", "-m", "x", "--priority", "10"], 2, "'10' is not a whole number from 0 to 9"),
        (["put", "-f", "/no/file"], 2, "cannot open /no/file: No such file"),
        (["get", "-C", "1", "--all"], 2, "-C or --all, not both"),
        (["get", "-F", "%z"], 2, "'%z' is no sequence"),
        (["get", "-W", "0"], 2, "'0' is not a number of seconds above 0"),
        (["peek"], 2, "invalid choice: 'peek'"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    kept: Run, words: list[str], code: int, says: str
) -> None:
    kept(words[0], *words[1:])
    assert (kept.code, kept.out, kept.err.count("\n")) == (code, b"", 1)
    assert kept.err.startswith("headwater")
    assert says in kept.err
    assert kept.ok("browse") == b"there\n"


def test_files_that_are_none(mq: Run) -> None:
    for name in ("get", "browse", "stats"):
        mq(name)
        assert (mq.code, f"there is no file {mq.store}" in mq.err) == (1, True)
    mq("put", "-f", "/no/file")
    assert not mq.store.exists()
    folder = mq.store.parent / "no"
    mq("put", "-m", "x", "--store", folder / "q.db")
    assert (
        mq.code,
        mq.err.count("\n"),
        f"q.db cannot be opened: there is no folder {folder}\n" in mq.err,
    ) == (1, 1, True)
    mq.store.write_bytes(b"something else altogether" * 100)
    mq("put", "-m", "x")
    assert (mq.code, mq.err.count("\n"), "(2059)" in mq.err) == (1, 1, True)
    assert mq.store.read_bytes() == b"something else altogether" * 100


def test_a_queue_that_is_full(mq: Run) -> None:
    mq("put", "-l", "--max-depth", 2, data=b"a\nb\nc\n")
    assert (mq.code, mq.err.count("\n"), "MQRC_Q_FULL (2053)" in mq.err) == (1, 1, True)
    assert mq.ok("browse") == b"a\nb\n"
    # It is made once.
    mq("put", "-m", "c", "--define", "--max-depth", 9)
    assert mq.code == 1


def test_a_message_that_is_too_large(mq: Run) -> None:
    mq("put", "-s", data=bytes((4 << 20) + 1))
    assert (mq.code, mq.err.count("\n")) == (1, 1)
    assert re.search(r"MQRC_MSG_TOO_BIG_FOR_Q \(2030\)|MQRC_MSG_TOO_BIG_FOR_Q_MGR \(2031\)", mq.err)
    mq.ok("put", "-s", "--segment-size", 1 << 20, data=bytes((4 << 20) + 1))
    assert len(mq.fields()) == 5


_VALUES = st.sampled_from(
    ["0", "1", "-1", "x", "", GROUP, "999999999", "1e9", "SEGMENT", "LAST_SEGMENT", "\u00e9", "MQHMDE"]
)
_WORDS = st.one_of(
    st.sampled_from(["-l", "-n", "--as-group", "--json", "--define", "--complete", "--all", "-N", "-v"]).map(
        lambda o: [o]
    ),
    st.tuples(
        st.sampled_from(
            [
                *("-m", "--group", "--seq", "--offset", "--flags", "--format", "--ccsid", "--encoding"),
                *("--priority", "--expiry", "--correl-id", "--segment-size", "--md-version"),
                *("-C", "-F", "--msg-id"),
            ]
        ),
        _VALUES,
    ).map(lambda pair: [f"{pair[0]}={pair[1]}"] if pair[0].startswith("--") else [pair[0] + pair[1]]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["put", "get", "browse", "stats"]), st.lists(_WORDS, max_size=5), st.binary(max_size=90)
)
def test_any_options_end_with_a_code_and_a_line_at_most(
    mq: Run, name: str, words: list[list[str]], data: bytes
) -> None:
    mq(name, *(word for pair in words for word in pair), data=data)
    assert mq.code in (0, 1, 2, 4)
    assert mq.err.count("\n") == (1 if mq.code else 0)


# -- the documentation -------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("\n## mq\n") : PAGE.index("\n## inspect\n")]


def test_the_documentation_has_every_option_flag_and_sequence() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    options = {
        name
        for sub in commands.choices.values()
        for action in sub._actions
        for name in action.option_strings[:1]
    }
    assert [name for name in sorted(options - {"-h"}) if f"`{name}" not in SECTION] == []
    assert [name for name in command._FLAGS if f"`{name}`" not in SECTION] == []
    assert [letter for letter in FIELDS if f"`%{letter}`" not in SECTION and letter not in "IU"] == []


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(\$.*?)```", SECTION, re.S)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "headwater").write_text(f'#!/bin/sh\nexec {" ".join(HEADWATER)} "$@"\n')
    (bin_ / "headwater").chmod(0o755)
    script = "\n".join(line[2:] for line in block.splitlines() if line.startswith("$ "))
    env = environment(PATH=f"{bin_}:/usr/bin:/bin")
    done = subprocess.run(
        ["sh", "-e", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "".join(
        line for line in block.splitlines(keepends=True) if not line.startswith("$ ")
    )


def test_the_lines_of_the_readme(tmp_path: Path) -> None:
    """They are run as they stand, by a shell."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [block for block in readme.split("```") if "headwater mq get" in block]
    lines = block.removeprefix("sh\n").replace("headwater mq", f"{shlex.join(HEADWATER)} mq")
    done = subprocess.run(
        ["sh", "-e", "-c", lines],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-3:] == ["21.5", "21.7", "21.6"]
    assert "1 complete, 0 incomplete" in done.stdout
