"""Which frames are one message: each rule by itself, and the same answer however the log is cut into parts.

``HEADWATER_LOGS=1000`` cuts so many random logs, of which each takes half a second.
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.capture.format import DUPLICATE, ORIGINAL, UNCERTAIN
from headwater_spark import overlaps, passes
from headwater_spark.pipeline import run_on
from headwater_spark.tables import FRAMES, MESSAGES, QUARANTINE, TELEMETRY, Table
from tests.host.capture_logs import write_old_log
from tests.rows import each_row
from tests.spark.logs import BEGIN_NS, SENT, SERIAL, InProcess, Rec, publish, reading, rows, write_log


class Outcome:
    """The tables of a log: the same with one part, and with a part for each block."""

    def __init__(self, folder: Path, records: Sequence[Rec]):
        self._outs, self._results = [], []
        for name, blocks, size in (("one", [records], 1 << 30), ("many", [[one] for one in records], 1)):
            capture = write_log(folder / name / "log", blocks)
            self._outs.append(folder / name / "out")
            self._results.append(run_on(InProcess(), capture, self._outs[-1], partition_bytes=size))

    def table(self, table: Table, *columns: str) -> list[Any]:
        one, many = (rows(out, table, *columns) for out in self._outs)
        assert one == many
        return one

    def count(self, name: str) -> Any:
        one, many = (getattr(result, name) for result in self._results)
        assert one == many
        return one

    def messages(self, *columns: str) -> list[Any]:
        return self.table(MESSAGES, *columns)

    def payloads(self) -> list[tuple[bytes, int]]:
        """(payload, copies) in the order of receipt."""
        return [row[1:] for row in self.messages("time_ns", "payload", "copies")]

    def quarantined(self) -> list[Any]:
        return self.table(QUARANTINE, "reason")


@pytest.fixture
def outcome(tmp_path: Path) -> Any:
    count = itertools.count()
    return lambda *records: Outcome(tmp_path / str(next(count)), records)


def identified(seq: int, *, board: str = "b1", boot: int = 1, topic: str = "t", **more: Any) -> bytes:
    """A message with an identity."""
    options = {name: more.pop(name) for name in ("qos", "packet_id", "dup", "retain") if name in more}
    return publish(topic, reading(board, boot, seq, **more), **options)


def test_identity_makes_two_frames_one_message(outcome: Any) -> None:
    found = outcome(Rec(identified(1), at=5), Rec(identified(1), at=9, connection=2))
    assert found.messages("seq", "copies", "time_ns", "connection") == [(1, 2, 1_790_000_000_005_000_000, 1)]
    assert found.count("duplicates") == 1


def test_identity_does_not_need_dup_nor_a_packet_id(outcome: Any) -> None:
    found = outcome(Rec(identified(1)), Rec(identified(1, qos=2, packet_id=9), at=1))
    assert found.messages("qos", "copies") == [(0, 2)]


@each_row("other", [{"board": "b2"}, {"boot": 2}, {"topic": "u"}])
def test_another_board_boot_or_topic_is_another_message(outcome: Any, other: dict[str, Any]) -> None:
    found = outcome(Rec(identified(1)), Rec(identified(1, **other), at=1))
    assert found.messages("copies") == [1, 1]


def test_another_seq_is_another_message_even_with_dup_and_the_same_packet_id(outcome: Any) -> None:
    found = outcome(
        Rec(identified(1, qos=1, packet_id=5)), Rec(identified(2, qos=1, packet_id=5, dup=True), at=1)
    )
    assert found.messages("seq", "copies") == [(1, 1), (2, 1)]


def test_a_retained_replay_of_a_known_message_is_a_duplicate(outcome: Any) -> None:
    found = outcome(
        Rec(identified(1, load=0.5)),
        Rec(identified(2), at=1),
        Rec(identified(1, load=0.5, retain=True), at=99),
    )
    assert found.messages("seq", "copies", "retain") == [(1, 2, False), (2, 1, False)]
    assert found.table(TELEMETRY, "metric") == ["load"]


def test_a_retained_message_that_is_not_known_stays(outcome: Any) -> None:
    found = outcome(Rec(identified(1, retain=True)), Rec(identified(2), at=1))
    assert found.messages("seq", "retain") == [(1, True), (2, False)]


def test_the_first_row_in_the_log_stays_also_when_the_clock_stepped_back(outcome: Any) -> None:
    found = outcome(Rec(identified(1), at=9, connection=2), Rec(identified(1), at=5, connection=1))
    assert found.messages("connection", "copies") == [(2, 2)]


def test_the_same_identity_with_another_payload_is_a_conflict(outcome: Any) -> None:
    found = outcome(
        Rec(identified(1, load=1)), Rec(identified(1, load=2), at=1), Rec(identified(1, load=1), at=2)
    )
    assert found.messages("copies") == [2]
    assert found.table(QUARANTINE, "kind", "reason", "bytes") == [
        ("message", "identity_conflict", b'{"board": "b1", "boot": 1, "seq": 1, "load": 2}')
    ]
    assert found.table(TELEMETRY, "value_double") == [1.0]
    assert found.count("duplicates") == 1


def test_qos_0_without_identity_is_never_a_duplicate(outcome: Any) -> None:
    found = outcome(*(Rec(publish("t", "same"), at=k) for k in range(3)))
    assert found.payloads() == [(b"same", 1)] * 3


X, X_DUP = publish("t", "x", qos=1), publish("t", "x", qos=1, dup=True)


def test_a_marked_duplicate_is_the_message_that_its_mark_names(outcome: Any) -> None:
    found = outcome(
        Rec(X, mark=ORIGINAL),
        Rec(X, mark=ORIGINAL, at=1),
        Rec(X_DUP, at=2, connection=2, mark=DUPLICATE, first=1),
        Rec(X_DUP, at=3, connection=3, mark=DUPLICATE, first=1),
    )
    assert found.messages("time_ns", "copies", "possible_duplicate") == [
        (BEGIN_NS, 1, False),
        (BEGIN_NS + 10**6, 3, False),
    ]
    assert (found.count("duplicates"), found.count("possible_duplicates")) == (2, 0)


def test_what_a_duplicate_repeats_may_be_received_before_by_the_log_and_not_by_the_clock(
    outcome: Any,
) -> None:
    found = outcome(Rec(X, at=9, mark=ORIGINAL), Rec(X_DUP, at=5, mark=DUPLICATE, first=9))
    assert found.messages("time_ns", "copies") == [(BEGIN_NS + 9 * 10**6, 2)]


def test_a_duplicate_of_a_message_at_5_0_may_have_other_properties(outcome: Any) -> None:
    block, later = b"\x05\x02\x00\x00\x00\x3c", b"\x05\x02\x00\x00\x00\x3b"
    found = outcome(
        Rec(publish("t", "x", qos=1, block=block), mark=ORIGINAL, version=5),
        Rec(publish("t", "x", qos=1, dup=True, block=later), at=1, mark=DUPLICATE, version=5),
    )
    assert found.payloads() == [(b"x", 2)]


@each_row(
    "first",
    [
        Rec(publish("t", "x", qos=1, packet_id=2)),
        Rec(publish("t", "y", qos=1)),
        Rec(publish("u", "x", qos=1)),
        Rec(publish("t", "x", qos=2)),
        Rec(publish("t", "x")),
        Rec(X, at=1),
        Rec(X, peer=SERIAL),
        Rec(X, direction=SENT),
        Rec(X, protocol=3, version=0),
        Rec(X[:-1]),
        Rec(X_DUP, mark=DUPLICATE, first=0),
    ],
    ids=[
        "packet id",
        "payload",
        "topic",
        "QoS",
        "QoS 0",
        "time",
        "peer",
        "sent",
        "protocol",
        "malformed",
        "duplicate",
    ],
)
def test_a_duplicate_of_what_the_log_has_not_stays(outcome: Any, first: Rec) -> None:
    found = outcome(first, Rec(X_DUP, at=3, mark=DUPLICATE, first=0))
    rows = found.messages("time_ns", "copies", "possible_duplicate")
    assert rows[-1] == (BEGIN_NS + 3 * 10**6, 1, True)
    assert [copies for _, copies, _ in rows] == [1] * len(rows)


def test_a_damaged_block_does_not_give_its_duplicates_to_an_older_message(tmp_path: Path) -> None:
    """The messages are alike, and have the same packet id, as a sensor's are."""
    blocks = [
        [Rec(X, mark=ORIGINAL)],
        [Rec(X, at=1, mark=ORIGINAL)],
        [Rec(X_DUP, at=2, mark=DUPLICATE, first=1)],
    ]
    capture = write_log(tmp_path / "log", blocks)
    (path,) = capture.glob("segment-*.hwc")
    data = bytearray(path.read_bytes())
    data[data.index(b"HWB1", 4) + 64] ^= 1
    path.write_bytes(data)
    run_on(InProcess(), capture, tmp_path / "out")
    assert rows(tmp_path / "out", MESSAGES, "time_ns", "possible_duplicate") == [
        (BEGIN_NS, False),
        (BEGIN_NS + 2 * 10**6, True),
    ]


@each_row(
    "qos, mark, doubtful",
    [(qos, *row) for qos in (1, 2) for row in ((0, True), (ORIGINAL, False), (UNCERTAIN, True), (77, True))],
)
def test_dup_alone_proves_nothing(outcome: Any, qos: int, mark: int, doubtful: bool) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=qos), mark=ORIGINAL),
        Rec(publish("t", "x", qos=qos, dup=True), at=1, mark=mark),
        Rec(publish("t", "x", qos=qos, dup=True), at=2, connection=2, mark=mark),
    )
    assert found.messages("copies", "possible_duplicate") == [(1, False), (1, doubtful), (1, doubtful)]
    assert found.count("possible_duplicates") == 2 * doubtful


def test_an_identity_settles_what_marks_do_not(outcome: Any) -> None:
    found = outcome(
        Rec(identified(1, qos=1), mark=ORIGINAL),
        Rec(identified(1, qos=1, dup=True), at=1, mark=UNCERTAIN),
        Rec(identified(2, qos=1, dup=True), at=2, mark=UNCERTAIN),
        Rec(identified(2, qos=1, dup=True), at=3, mark=DUPLICATE, first=2),
    )
    assert found.messages("seq", "copies", "possible_duplicate") == [(1, 2, False), (2, 2, False)]


def test_a_bad_identity_and_its_duplicate_are_refused(outcome: Any) -> None:
    bad = publish("t", reading("b1", 1, "one"), qos=1)  # type: ignore[arg-type]
    found = outcome(Rec(bad, mark=ORIGINAL), Rec(bad, at=1, mark=DUPLICATE, first=0))
    assert found.messages() == []
    assert found.quarantined() == ["bad_identity"] * 2


def test_seventeen_messages_are_seventeen_rows(outcome: Any) -> None:
    """A board with sixteen packet ids sends the same reading again and again; the seventeenth was cut off with its
    connection, and comes over the next one with DUP."""
    records = [
        Rec(publish("t", "20.5", qos=1, packet_id=k + 1), at=k * 1000, mark=ORIGINAL) for k in range(16)
    ]
    dup = publish("t", "20.5", qos=1, packet_id=1, dup=True)
    for mark, doubtful in ((UNCERTAIN, True), (0, True), (ORIGINAL, False)):
        found = outcome(*records, Rec(dup, at=8 * 3600 * 1000, connection=2, mark=mark))
        assert (
            found.messages("copies", "possible_duplicate")
            == [(1, False)] * (17 - doubtful) + [(1, True)] * doubtful
        )


def test_records_of_version_1_have_no_mark_and_stay(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    written = write_old_log(tmp_path / "log", 1)
    result = run_on(InProcess(), tmp_path / "log", tmp_path / "out")
    assert result.problems == []
    assert rows(tmp_path / "out", FRAMES, "frame", "mark", "first_ns") == sorted(
        ((record.frame, 0, None) for record in written), key=repr
    )
    assert rows(tmp_path / "out", MESSAGES, "payload", "seq", "copies", "possible_duplicate") == [
        (b"x", None, 1, False),
        (b"x", None, 1, True),
        (written[3].frame[5:], 2, 1, False),
    ]


def test_what_the_gateway_sent_is_no_received_message(outcome: Any) -> None:
    found = outcome(Rec(identified(1), direction=SENT), Rec(publish("t", "x", qos=1), direction=SENT, at=1))
    assert found.messages() == []
    assert found.count("rows")["frames"] == 2


# -- however the log is cut ------------------------------------------------------------------------------------------

plain = st.builds(
    lambda payload, qos, packet_id, dup: publish(
        "t", payload, qos=qos, packet_id=packet_id, dup=dup and qos > 0
    ),
    st.sampled_from(["x", "y"]),
    st.integers(0, 2),
    st.integers(1, 2),
    st.booleans(),
)
known = st.builds(
    lambda seq, boot, load, qos, packet_id, retain: identified(
        seq, boot=boot, load=load, qos=qos, packet_id=packet_id, retain=retain
    ),
    st.integers(0, 6),
    st.integers(1, 2),
    st.sampled_from([0, 0, 0, 1]),
    st.integers(0, 1),
    st.integers(1, 2),
    st.booleans(),
)
anything = st.sampled_from([b"", b"\x36\x00", b"\x30\x05\x00", publish("t", reading("b1", 1, -1), qos=1)])
records = st.builds(
    Rec,
    frame=st.one_of(plain, plain, plain, known, known, anything),
    at=st.integers(0, 5),
    connection=st.integers(1, 2),
    peer=st.sampled_from(["p", "q"]),
    direction=st.sampled_from([0, 0, 0, 1]),
    protocol=st.sampled_from([1, 1, 1, 2]),
    version=st.sampled_from([4, 4, 4, 3, 5, 9]),
    mark=st.sampled_from([0, ORIGINAL, DUPLICATE, DUPLICATE, UNCERTAIN]),
    first=st.integers(0, 5),
)


@settings(max_examples=int(os.environ.get("HEADWATER_LOGS", "25")), deadline=None)
@given(st.lists(records, min_size=1, max_size=24), st.integers(1, 5), st.integers(2, 4))
def test_the_tables_do_not_depend_on_how_the_log_is_cut(
    tmp_path_factory: pytest.TempPathFactory, some: list[Rec], per_block: int, max_runs: int
) -> None:
    tmp = tmp_path_factory.mktemp("cut")
    blocks = [some[at : at + per_block] for at in range(0, len(some), per_block)]
    capture = write_log(tmp / "log", blocks, segment_blocks=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlaps, "MAX_RUNS", max_runs)
        patch.setattr(passes, "_CANDIDATES", 3)
        results = [
            run_on(InProcess(), capture, tmp / str(size), partition_bytes=size, batch_rows=batch_rows)
            for size, batch_rows in ((1 << 30, 1 << 15), (1, 1 << 15), (600, 2))
        ]
    assert len(results[0].plan.partitions) == 1 or len(blocks) > 1
    for table in (MESSAGES, TELEMETRY, QUARANTINE):
        tables = [rows(tmp / str(size), table) for size in (1 << 30, 1, 600)]
        assert tables[1] == tables[0]
        assert tables[2] == tables[0]
    assert results[1].stats == results[0].stats
    assert results[2].quarantined == results[0].quarantined
