"""Which frames are one message: each rule by itself, and the same answer however the log is cut into parts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_spark import pipeline, runs
from headwater_spark.pipeline import run_on
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY
from tests.spark.logs import SENT, SERIAL, InProcess, Rec, ack, publish, reading, rows, write_log

PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7
#: One part, and one part per block: the rules must not see where the log was cut.
CUTS = {"together": 1 << 30, "apart": 1}


class Outcome:
    """The tables of a log."""

    def __init__(self, tmp_path: Path, records: Sequence[Rec], cut: str):
        blocks = [records] if cut == "together" else [[record] for record in records]
        capture = write_log(tmp_path / "log", blocks)
        self.result = run_on(InProcess(), capture, tmp_path / "out", partition_bytes=CUTS[cut])
        self.out = tmp_path / "out"

    def messages(self, *columns: str) -> list[Any]:
        return rows(self.out, MESSAGES, *columns)

    def payloads(self) -> list[tuple[bytes, int]]:
        """(payload, copies) in the order of receipt."""
        return [row[1:] for row in self.messages("time_ns", "payload", "copies")]

    def quarantined(self) -> list[Any]:
        return rows(self.out, QUARANTINE, "reason")


@pytest.fixture(params=CUTS)
def outcome(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return lambda *records: Outcome(tmp_path, records, request.param)


def identified(seq: int, *, board: str = "b1", boot: int = 1, topic: str = "t", **more: Any) -> bytes:
    """A message with an identity."""
    options = {name: more.pop(name) for name in ("qos", "packet_id", "dup", "retain") if name in more}
    return publish(topic, reading(board, boot, seq, **more), **options)


def test_identity_makes_two_frames_one_message(outcome: Any) -> None:
    found = outcome(Rec(identified(1), at=5), Rec(identified(1), at=9, connection=2))
    assert found.messages("seq", "copies", "time_ns", "connection") == [
        (1, 2, 1_790_000_000_005_000_000, 1),
    ]
    assert found.result.duplicates == 1


def test_identity_does_not_need_dup_nor_a_packet_id(outcome: Any) -> None:
    found = outcome(Rec(identified(1)), Rec(identified(1, qos=2, packet_id=9), at=1))
    assert found.messages("qos", "copies") == [(0, 2)]


@pytest.mark.parametrize("other", [{"board": "b2"}, {"boot": 2}, {"topic": "u"}])
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
    assert rows(found.out, TELEMETRY, "metric") == ["load"]


def test_a_retained_message_that_is_not_known_stays(outcome: Any) -> None:
    found = outcome(Rec(identified(1, retain=True)), Rec(identified(2), at=1))
    assert found.messages("seq", "retain") == [(1, True), (2, False)]


def test_the_first_received_stays_also_when_the_log_has_it_later(outcome: Any) -> None:
    found = outcome(Rec(identified(1), at=9, connection=2), Rec(identified(1), at=5, connection=1))
    assert found.messages("connection", "copies") == [(1, 2)]


def test_the_same_identity_with_another_payload_is_a_conflict(outcome: Any) -> None:
    found = outcome(
        Rec(identified(1, load=1)), Rec(identified(1, load=2), at=1), Rec(identified(1, load=1), at=2)
    )
    assert found.messages("copies") == [2]
    assert rows(found.out, QUARANTINE, "kind", "reason", "bytes") == [
        ("message", "identity_conflict", b'{"board": "b1", "boot": 1, "seq": 1, "load": 2}')
    ]
    assert rows(found.out, TELEMETRY, "value_double") == [1.0]
    assert found.result.duplicates == 1


def test_qos_0_without_identity_is_never_a_duplicate(outcome: Any) -> None:
    found = outcome(*(Rec(publish("t", "same"), at=k) for k in range(3)))
    assert found.payloads() == [(b"same", 1)] * 3


def test_dup_on_the_same_connection_repeats_the_message_before(outcome: Any) -> None:
    found = outcome(Rec(publish("t", "x", qos=1)), Rec(publish("t", "x", qos=1, dup=True), at=1))
    assert found.payloads() == [(b"x", 2)]


def test_dup_after_dup_repeats_the_first(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(publish("t", "x", qos=1, dup=True), at=1),
        Rec(publish("t", "x", qos=1, dup=True), at=2, connection=2),
    )
    assert found.payloads() == [(b"x", 3)]


def test_dup_after_a_reconnect_of_the_same_peer_is_the_same_message(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=2)), Rec(publish("t", "x", qos=2, dup=True), at=1, connection=2)
    )
    assert found.payloads() == [(b"x", 2)]


def test_dup_from_another_peer_is_another_message(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(publish("t", "x", qos=1, dup=True), at=1, connection=2, peer=SERIAL),
    )
    assert found.payloads() == [(b"x", 1), (b"x", 1)]


def test_without_dup_the_same_packet_id_is_another_message(outcome: Any) -> None:
    found = outcome(Rec(publish("t", "x", qos=1)), Rec(publish("t", "x", qos=1), at=1))
    assert found.payloads() == [(b"x", 1), (b"x", 1)]


@pytest.mark.parametrize(
    "other",
    [
        publish("t", "x", qos=1, dup=True, packet_id=2),
        publish("t", "y", qos=1, dup=True),
        publish("u", "x", qos=1, dup=True),
        publish("t", "x", qos=2, dup=True),
    ],
    ids=["packet id", "payload", "topic", "QoS"],
)
def test_dup_with_something_else_is_another_message(outcome: Any, other: bytes) -> None:
    found = outcome(Rec(publish("t", "x", qos=1)), Rec(other, at=1))
    assert [copies for _, copies in found.payloads()] == [1, 1]


def test_dup_whose_first_was_never_seen_is_a_message(outcome: Any) -> None:
    found = outcome(Rec(publish("t", "x", qos=1, dup=True)))
    assert found.payloads() == [(b"x", 1)]


def test_a_packet_id_that_was_used_again_ends_the_message_before(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(publish("t", "y", qos=1), at=1),
        Rec(publish("t", "x", qos=1, dup=True), at=2),
    )
    assert found.payloads() == [(b"x", 1), (b"y", 1), (b"x", 1)]


def test_a_packet_id_that_a_message_with_identity_used_ends_the_message_before(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(identified(1, qos=1), at=1),
        Rec(identified(1, qos=1), at=2, connection=2),
        Rec(publish("t", "x", qos=1, dup=True), at=3),
    )
    assert [payload for payload, _ in found.payloads()].count(b"x") == 2


def test_a_packet_id_that_a_bad_message_used_ends_the_message_before(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(publish("t", reading("b1", 1, "one"), qos=1), at=1),  # type: ignore[arg-type]
        Rec(publish("t", "x", qos=1, dup=True), at=2),
    )
    assert found.payloads() == [(b"x", 1), (b"x", 1)]
    assert found.quarantined() == ["bad_identity"]


def test_an_acknowledged_qos_1_message_is_over_on_its_connection(outcome: Any) -> None:
    """4.3.2: after PUBACK the same packet id is a new publication, whatever DUP says."""
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(ack(PUBACK, 1), at=1, direction=SENT),
        Rec(publish("t", "x", qos=1, dup=True), at=2),
    )
    assert found.payloads() == [(b"x", 1), (b"x", 1)]


def test_an_acknowledgement_may_have_been_lost_with_its_connection(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(ack(PUBACK, 1), at=1, direction=SENT),
        Rec(publish("t", "x", qos=1, dup=True), at=2, connection=2),
    )
    assert found.payloads() == [(b"x", 2)]


def test_the_puback_of_the_other_direction_says_nothing(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(ack(PUBACK, 1), at=1),
        Rec(publish("t", "x", qos=1, dup=True), at=2),
    )
    assert found.payloads() == [(b"x", 2)]


def test_the_puback_of_another_connection_says_nothing(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(ack(PUBACK, 1), at=1, direction=SENT, connection=2),
        Rec(publish("t", "x", qos=1, dup=True), at=2),
    )
    assert found.payloads() == [(b"x", 2)]


def test_the_puback_of_another_packet_id_says_nothing(outcome: Any) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=1)),
        Rec(ack(PUBACK, 2), at=1, direction=SENT),
        Rec(publish("t", "x", qos=1, dup=True), at=2),
    )
    assert found.payloads() == [(b"x", 2)]


def test_pubrec_does_not_end_a_qos_2_message(outcome: Any) -> None:
    """4.3.3: until PUBREL the receiver must not deliver it again."""
    found = outcome(
        Rec(publish("t", "x", qos=2)),
        Rec(ack(PUBREC, 1), at=1, direction=SENT),
        Rec(publish("t", "x", qos=2, dup=True), at=2),
    )
    assert found.payloads() == [(b"x", 2)]


LONG_PUBREL = b"\x62\x82\x00\x00\x01"  # its remaining length in two bytes


@pytest.mark.parametrize(
    "end", [Rec(ack(PUBREL, 1), at=1), Rec(LONG_PUBREL, at=1), Rec(ack(PUBCOMP, 1), at=1, direction=SENT)]
)
@pytest.mark.parametrize("connection", [1, 2])
def test_a_released_qos_2_message_is_over(outcome: Any, end: Rec, connection: int) -> None:
    found = outcome(
        Rec(publish("t", "x", qos=2)),
        end,
        Rec(publish("t", "x", qos=2, dup=True), at=2, connection=connection),
    )
    assert found.payloads() == [(b"x", 1), (b"x", 1)]


def test_what_the_gateway_sent_is_no_received_message(outcome: Any) -> None:
    found = outcome(Rec(identified(1), direction=SENT), Rec(publish("t", "x", qos=1), direction=SENT, at=1))
    assert found.messages() == []
    assert found.result.rows["frames"] == 2


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
acks = st.builds(ack, st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]), st.integers(1, 2))
anything = st.sampled_from([b"", b"\x36\x00", b"\x30\x05\x00", publish("t", reading("b1", 1, -1), qos=1)])
records = st.builds(
    Rec,
    frame=st.one_of(plain, plain, known, known, acks, anything),
    at=st.integers(0, 5),
    connection=st.integers(1, 2),
    peer=st.sampled_from(["p", "q"]),
    direction=st.sampled_from([0, 0, 0, 1]),
    protocol=st.sampled_from([1, 1, 1, 2]),
    version=st.sampled_from([4, 4, 4, 3, 5, 9]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(records, min_size=1, max_size=24), st.integers(1, 5), st.integers(2, 4))
def test_the_tables_do_not_depend_on_how_the_log_is_cut(
    tmp_path_factory: pytest.TempPathFactory, some: list[Rec], per_block: int, max_runs: int
) -> None:
    tmp = tmp_path_factory.mktemp("cut")
    blocks = [some[at : at + per_block] for at in range(0, len(some), per_block)]
    capture = write_log(tmp / "log", blocks, segment_blocks=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "MAX_RUNS", max_runs)
        patch.setattr(pipeline, "_CANDIDATES", 3)
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
