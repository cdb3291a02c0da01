"""The gateway speaks MQTT 5.0 to a broker, and 3.1.1 to one that refuses that or does not answer it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headwater_host.capture import CaptureReader
from headwater_host.gateway.broker_source import BrokerSource
from headwater_host.gateway.config import BrokerConfig
from headwater_host.gateway.source import SOURCE_STATISTICS
from tests.host.mqtt_server import HOST, packet, speak
from tests.host.recording import recording, task_of
from tests.waiting import PATIENCE_S, until

FIVE, FOUR = 5, 4
CONNACK = {FOUR: "20 02 00 00", FIVE: "20 03 00 00 00"}
SUBACK = {FOUR: "90 03 %s 01", FIVE: "90 04 %s 00 01"}
PUBLISH = {FOUR: "32 06 0001 74 0007 78", FIVE: "32 07 0001 74 0007 00 78"}


class Broker:
    """Answers each CONNECT with what ``answers`` has for its level, None to close; then sends one message."""

    source: BrokerSource

    def __init__(self, answers: Callable[[int, int], str | None]):
        self._answers = answers
        self.connects: list[bytes] = []
        self.acknowledged = asyncio.Event()

    @property
    def levels(self) -> list[int]:
        return [connect[6] for connect in self.connects]

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, connect = await packet(reader)
        level = connect[6]
        self.connects.append(connect)
        answer = self._answers(level, len(self.connects))
        writer.write(bytes.fromhex(answer or ""))
        if answer != CONNACK[level]:
            return
        head, subscribe = await packet(reader)
        assert head[0] == 0x82
        writer.write(bytes.fromhex(SUBACK[level] % subscribe[:2].hex() + PUBLISH[level]))
        assert await packet(reader) == (b"\x40\x02", b"\x00\x07")
        self.acknowledged.set()
        await reader.read()

    async def drop(self) -> None:
        """Cut the connection, as soon as there is one."""
        await until(lambda: self.source._client.connection is not None)
        assert self.source._client.connection is not None
        self.source._client.connection.drop(-1)


@contextlib.asynccontextmanager
async def gateway_of(
    log: Path, answers: Callable[[int, int], str | None], **settings: Any
) -> AsyncIterator[Broker]:
    """A gateway's source and its broker."""
    broker = Broker(answers)
    async with recording(log) as (recorder, _), speak(broker.talk) as port:
        config = BrokerConfig(HOST, port, (("t", 1),), "recorder", timeout=PATIENCE_S, **settings)
        broker.source = BrokerSource(recorder, config)
        async with task_of(broker.source.run()) as task:
            yield broker
        assert task.cancelled()


def recorded(directory: Path) -> list[tuple[int, str]]:
    return [(record.version, record.frame.hex(" ")) for record in CaptureReader(directory).records()]


def only(level: int) -> list[tuple[int, str]]:
    return [(level, bytes.fromhex(PUBLISH[level]).hex(" "))]


async def test_it_begins_with_5_0_and_says_what_it_takes(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, lambda level, _: CONNACK[level]) as broker:
        await broker.acknowledged.wait()
        (connect,) = broker.connects
        # Not a clean start; the session for ever; so many messages in flight, and no largest packet.
        assert connect[7] == 0
        size = connect[10]
        assert {connect[11 : 11 + size]} <= {
            bytes.fromhex("11 ffffffff 21 1000"),
            bytes.fromhex("21 1000 11 ffffffff"),
        }
        assert broker.source.status()["protocol"] == "5.0"
    assert recorded(tmp_path) == only(FIVE)


async def test_the_receive_maximum_is_a_setting(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, lambda level, _: CONNACK[level], receive_maximum=10) as broker:
        await broker.acknowledged.wait()
        assert b"\x21\x00\x0a" in broker.connects[0]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("20 02 00 01", id="as 3.1.1 does"),
        pytest.param("20 03 00 84 00", id="as 5.0 does"),
        pytest.param(None, id="without a word"),
    ],
)
async def test_a_broker_of_3_1_1_is_spoken_to_in_3_1_1(
    tmp_path: Path, answer: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.gateway")
    async with gateway_of(tmp_path, lambda level, _: CONNACK[FOUR] if level == FOUR else answer) as broker:
        await broker.acknowledged.wait()
        refused = 1 if answer else 2
        assert broker.levels == [FIVE] * refused + [FOUR]
        assert broker.source.status()["protocol"] == "3.1.1"
        await until(lambda: broker.source.state == "subscribed")
    assert recorded(tmp_path) == only(FOUR)
    assert caplog.text.count("MQTT 5.0: trying 3.1.1") == 1
    assert "a new session, MQTT 3.1.1" in caplog.text


async def test_a_server_that_closes_everything_for_a_while_is_tried_in_both_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy without its broker, for example: which version it will take, nobody knows."""
    caplog.set_level(logging.INFO, "headwater.gateway")
    async with gateway_of(tmp_path, lambda level, count: CONNACK[level] if count == 5 else None) as broker:
        await broker.acknowledged.wait()
        assert broker.levels == [FIVE, FIVE, FOUR, FOUR, FIVE]
    assert recorded(tmp_path) == only(FIVE)
    assert caplog.text.count("trying 3.1.1") == 1


async def test_a_connection_that_is_lost_later_does_not_count(tmp_path: Path) -> None:
    # Accepted at first, later closed without an answer now and then.
    async with gateway_of(
        tmp_path, lambda level, count: None if count in {2, 3, 4} else CONNACK[level]
    ) as broker:
        await broker.acknowledged.wait()
        while len(broker.connects) < 5:
            broker.acknowledged.clear()
            await broker.drop()
            await broker.acknowledged.wait()
        assert set(broker.levels) == {FIVE}


async def test_a_broker_that_is_replaced_is_spoken_to_in_its_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By one that refuses the version that the broker before has accepted; there and back."""
    refusals = {FOUR: "20 02 00 01", FIVE: "20 03 00 84 00"}
    speaks = [FOUR, FIVE, FOUR]

    caplog.set_level(logging.INFO, "headwater.gateway")
    async with gateway_of(
        tmp_path, lambda level, _: CONNACK[level] if level == speaks[0] else refusals[level]
    ) as broker:
        while speaks:
            await broker.acknowledged.wait()
            assert broker.source.status().keys() <= SOURCE_STATISTICS.keys()
            assert broker.source.status()["protocol"] == ("5.0" if speaks[0] == FIVE else "3.1.1")
            del speaks[0]
            broker.acknowledged.clear()
            if speaks:
                await broker.drop()
    assert recorded(tmp_path) == only(FOUR) + only(FIVE) + only(FOUR)
    assert caplog.text.count("refuses MQTT 3.1.1: trying 5.0") == 1


@pytest.mark.parametrize(
    "seconds, warnings", [(0, 1), (3600, 1), (0xFFFFFFFF, 0)], ids=["not kept", "an hour", "for ever"]
)
async def test_a_broker_that_keeps_the_session_for_a_while_only(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    warnings: int,
) -> None:
    monkeypatch.setitem(CONNACK, FIVE, f"20 08 00 00 05 11 {seconds:08x}")

    caplog.set_level(logging.INFO, "headwater.gateway")
    async with gateway_of(tmp_path, lambda level, _: CONNACK[level]) as broker:
        for _ in range(2):
            await broker.acknowledged.wait()
            broker.acknowledged.clear()
            await until(lambda: broker.source.state == "subscribed")
            await broker.drop()
    assert caplog.text.count(f"keeps the session for only {seconds} s") == warnings


@pytest.mark.parametrize("protocol, level", [("5.0", FIVE), ("3.1.1", FOUR)])
async def test_a_version_that_is_set_is_kept(tmp_path: Path, protocol: str, level: int) -> None:
    async with gateway_of(
        tmp_path, lambda _, count: CONNACK[level] if count == 4 else None, protocol=protocol
    ) as broker:
        await broker.acknowledged.wait()
        assert broker.levels == [level] * 4
    assert recorded(tmp_path) == only(level)
