"""Dirty input: each frame ends in exactly one of messages, duplicates and quarantine, and the counts add up.

A log of four kinds of boards, of which 1 % of the frames are damaged as the fuzzers damage packets, blocks have bits
flipped, its end is torn off, clocks are set back and forward, and boards use ids again after they have lost their
counters. Between them are segments and groups of IBM MQ, some with a damaged MQMDE in a sound frame. What is expected
of each frame comes from the core, frame by frame.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headwater_host.capture.format import DUPLICATE
from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import read_manifest
from headwater_host.mqtt_properties import encode
from headwater_spark import delta
from headwater_spark.fmq_core import CoreFrame
from headwater_spark.growth import grow
from headwater_spark.mqmde import refusal
from headwater_spark.positions import Position
from headwater_spark.result import Result
from headwater_spark.tables import FRAMES, LOGICAL_MESSAGES, MESSAGES, QUARANTINE
from tests.fuzz.packets import damage_bytes
from tests.spark.fmq_bytes import fmq_publish, message_id, spoiled
from tests.spark.logs import BEGIN_NS, InProcess, Rec, ack, damage, publish, reading, rows, write_log
from tests.spark.mq_bytes import mqmde, some_groups
from tests.spark.test_logical_pipeline import by_rules, table
from tests.spark.test_mqmde import core
from tests.spark.test_mqtt import of_core

COUNT = 1500
PER_BLOCK = 40
#: Blocks with a flipped bit: in their frames, and in a header.
FLIPPED = ((7, 300), (20, 20))
Place = tuple[str, int, int]


def segments() -> list[list[Rec]]:
    """Segments of IBM MQ with their redeliveries, over MQTT and FMQ: COUNT lists. One MQMDE in ten is damaged.

    Groups lie across the whole log, and so across its blocks and batches.
    """
    chance = random.Random(15)
    found: list[list[Rec]] = [[] for _ in range(COUNT)]
    some = some_groups()
    for number, (topic, payload, _) in enumerate(some):
        k = number * COUNT // len(some)
        at = k * 10 + 5
        how = chance.randrange(56)
        if how < 5:
            payload = damage_bytes(payload, how, chance.randrange(72), chance.randrange(256))
        elif how == 5:
            payload = payload[: chance.randrange(80)]
        elif how == 6:
            # An MQMDE in front of an MQMDE.
            payload = mqmde(payload, Format="MQHMDE", group=bytes(24))
        if number % 2:
            first = publish(topic, payload, qos=1, packet_id=1 + number % 50)
            found[k].append(Rec(first, at, 7, "mqtt:h:5"))
            if number % 5 == 1:
                again = publish(topic, payload, qos=1, packet_id=1 + number % 50, dup=True)
                found[k].append(Rec(again, at + 50, 8, "mqtt:h:5", mark=DUPLICATE, first=at))
        else:
            ident = message_id(BEGIN_NS + number, process=8)
            found[k].append(Rec(fmq_publish(topic, payload, ident, qos=1), at, 9, "fmq:h:6", 0, 2, 0))
            if number % 5 == 2:
                again = fmq_publish(topic, payload, ident, qos=1, dup=True)
                found[k].append(Rec(again, at + 50, 9, "fmq:h:6", 0, 2, 0))
    return found


def clean() -> list[Rec]:
    """Messages of four boards, a third of them redelivered, segments of IBM MQ, and acknowledgements."""
    found = []
    some = segments()
    block = encode({"content_type": "application/json", "user_property": [("site", "é")]}, 1 << 3)
    for k in range(COUNT):
        # The board loses its counters twice, and its clock is wrong by an hour for a while.
        boot, seq = 1 + (k > 900), k % 600
        at = k * 10 + (3_600_000 if 400 < k < 500 else -3_600_000 if 700 < k < 750 else 0)
        values = reading("b1", boot, seq, load=k / 8)
        qos = k % 3
        first = publish("hw/b1", values, qos=qos, packet_id=1 + k % 50)
        found.append(Rec(first, at, 1, "mqtt:h:1"))
        if k % 3 == 2:
            again = publish("hw/b1", values, qos=qos, packet_id=1 + k % 50, dup=True)
            found.append(Rec(again, at + 200, 2, "mqtt:h:1"))
        found.append(
            Rec(publish("hw/b5", reading("b5", 1, seq, n=k), block=block), at + 1, 3, "mqtt:h:2", version=5)
        )
        plain = publish("plain", f"{k}", qos=1, packet_id=1 + k % 100)
        found.append(Rec(plain, at + 2, 4, "mqtt:h:3"))
        if k % 4 == 1:
            dup = publish("plain", f"{k}", qos=1, packet_id=1 + k % 100, dup=True)
            found.append(Rec(dup, at + 50, 5, "mqtt:h:3", mark=DUPLICATE, first=at + 2))
        ident = message_id(BEGIN_NS + (k % 700) * 10**7, process=7)
        found.append(
            Rec(fmq_publish("f/b7", {"load": k / 4, "n": k}, ident, qos=1), at + 3, 6, "fmq:h:4", 0, 2, 0)
        )
        found.append(Rec(ack(4, 1 + k % 50), at + 4, 1, "mqtt:h:1"))
        found += some[k]
    return found


def dirty(records: list[Rec], chance: random.Random) -> list[Rec]:
    """The records, 1 % of them damaged in every way."""
    chosen = chance.sample(range(len(records)), len(records) // 100)
    result = list(records)
    for number, index in enumerate(chosen):
        frame = records[index].frame
        kinds = number % 9
        if kinds < 5:
            frame = damage_bytes(frame, kinds, chance.randrange(300), chance.randrange(256))
        elif kinds == 5:
            frame = chance.choice(list(spoiled(frame)))
        elif kinds == 6:
            frame = frame[: chance.randrange(len(frame))]
        elif kinds == 7:
            frame += chance.randbytes(chance.randrange(1, 9))
        else:
            frame = chance.randbytes(chance.randrange(60))
        result[index] = records[index]._replace(frame=frame)
    return result


def verdict(frame: bytes, protocol: int, version: int) -> str:
    """The core's: malformed, message or other."""
    if protocol == 2:
        found = CoreFrame(frame)
        return "malformed" if found.error else "message" if found.kind in (3, 11) else "other"
    answer = of_core(frame, version)
    return "malformed" if "error" in answer else "message" if answer.get("type") == "PUBLISH" else "other"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, int]:
    """The tables, the batch's numbers, and how many frames were in damaged blocks."""
    tmp = tmp_path_factory.mktemp("dirty")
    records = dirty(clean(), random.Random(14))
    blocks = [records[at : at + PER_BLOCK] for at in range(0, len(records), PER_BLOCK)]
    log = write_log(tmp / "log", blocks, segment_blocks=60)
    segments = sorted(log.glob("*.hwc"))
    assert len(segments) > 3
    lost = 0
    for block, at in FLIPPED:
        damage(segments[0], block, at)
        lost += PER_BLOCK
    # The last block is torn.
    data = segments[-1].read_bytes()
    segments[-1].write_bytes(data[: data.rfind(b"HWB1") + 200])
    lost += len(blocks[-1])
    result = grow(InProcess(), [log], tmp / "out", partition_bytes=20_000, batch_rows=100)
    return tmp / "out", result, len(records) - lost


def by_place(out: Path, table: str, *columns: str) -> list[tuple[Place, tuple[Any, ...]]]:
    found = delta.dataset(out, table).to_table().select(["file", "offset", "record", *columns]).to_pylist()
    return [
        ((row["file"], row["offset"], row["record"]), tuple(row[name] for name in columns)) for row in found
    ]


def test_each_frame_ends_in_one_place(run: tuple[Path, Result, int]) -> None:
    out, result, count = run
    frames = dict(by_place(out, FRAMES.name, "frame", "protocol", "version"))
    assert len(frames) == result.rows[FRAMES.name] == count
    kept = by_place(out, MESSAGES.name, "copies", "topic", "payload", "board", "seq")
    refused = [row for row in by_place(out, QUARANTINE.name, "kind", "reason") if row[1][0] != "block"]
    messages, quarantine = dict(kept), dict(refused)
    # No frame is in two places, or twice in one; only a message with a bad MQMDE is in both tables.
    assert len(messages) == len(kept)
    assert len(quarantine) == len(refused)
    bad_mqmde = {place for place, (_, reason) in refused if reason == "bad_mqmde"}
    assert messages.keys() & quarantine.keys() == bad_mqmde
    duplicates = Counter[str]()
    for place, frame in frames.items():
        expected = verdict(*frame)
        kind = quarantine.get(place, (None,))[0]
        assert (kind == "frame") == (expected == "malformed"), (place, frame)
        if expected == "message":
            if place not in messages and kind is None:
                duplicates["frames"] += 1
        else:
            assert place not in messages
            assert kind in (None, "frame")
    assert duplicates["frames"] == sum(copies - 1 for copies, *_ in messages.values())
    # The numbers of the batch say the same.
    assert result.duplicates == duplicates["frames"]
    assert result.rows[MESSAGES.name] == len(messages)
    in_all = Counter(reason for _, reason in quarantine.values())
    assert in_all + Counter({"bad_block": result.quarantined["bad_block"]}) == result.quarantined
    assert {problem.kind for problem in result.problems} >= {"bad"}
    # Every kind of trouble took place.
    assert in_all["identity_conflict"] > 500
    assert duplicates["frames"] > 500
    assert len(in_all) > 7


def test_a_bad_mqmde_has_the_reason_of_the_core(run: tuple[Path, Result, int]) -> None:
    out, result, _ = run
    expected = {
        place: ("message", refusal(*answer), answer[1])
        for place, (payload,) in by_place(out, MESSAGES.name, "payload")
        if isinstance(answer := core(payload), tuple)
    }
    names = ("reason", "kind", "detail", "error_at")
    found = by_place(out, QUARANTINE.name, *names)
    assert {place: row for place, (reason, *row) in found if reason == "bad_mqmde"} == {
        place: [*row] for place, row in expected.items()
    }
    assert result.quarantined["bad_mqmde"] == len(expected)
    assert len({detail for _, detail, _ in expected.values()}) > 4


def test_logical_messages_are_those_of_the_plain_rules(run: tuple[Path, Result, int]) -> None:
    out, result, _ = run
    found = table(out)
    assert found == by_rules(out)
    assert result.logical["whole"] == sum(row["complete"] for row in found) > 100
    assert result.logical["incomplete"] > 100
    # An MQMDE behind an MQMDE is data.
    assert sum(row["format"] == "MQHMDE" for row in found) > 10


def test_four_batches_are_one(run: tuple[Path, Result, int], tmp_path: Path) -> None:
    """The same log in batches that end with segments: the same frames, messages and refusals."""
    out, whole, _ = run
    log = out.parent / "log"
    entries = list(read_manifest(log).entries.values())
    stops = [entries[len(entries) * quarter // 4 - 1] for quarter in (1, 2, 3)]
    ends = [{log_id(log): Position(one.file, one.bytes, one.next_sequence)} for one in stops]
    results = [
        grow(InProcess(), [log], tmp_path / "out", upto=end, partition_bytes=20_000, batch_rows=100)
        for end in (*ends, None)
    ]
    assert [result.batch for result in results] == [1, 2, 3, 4]
    assert all(result.rows[FRAMES.name] for result in results)
    assert sum((result.quarantined for result in results), Counter[str]()) == whole.quarantined
    assert sum(result.duplicates for result in results) == whole.duplicates
    for one_table in (FRAMES, MESSAGES, QUARANTINE, LOGICAL_MESSAGES):
        assert rows(tmp_path / "out", one_table) == rows(out, one_table), one_table.name


def test_what_is_kept_is_what_was_received(run: tuple[Path, Result, int]) -> None:
    """A kept message has the topic and payload of its frame, and a duplicate those of a kept one with copies."""
    out, _, _ = run
    kept = dict(by_place(out, MESSAGES.name, "topic", "payload", "copies", "protocol"))
    refused = {place for place, _ in by_place(out, QUARANTINE.name)}
    several = Counter((topic, payload) for topic, payload, copies, _ in kept.values() if copies > 1)
    for place, (frame, protocol, version) in by_place(out, FRAMES.name, "frame", "protocol", "version"):
        if protocol != 1 or verdict(frame, protocol, version) != "message":
            continue
        answer = of_core(frame, version)
        content = answer["topic"], bytes.fromhex(answer["payload"])
        if place in kept:
            assert kept[place][:2] == content
        elif place not in refused:
            assert several[content]
