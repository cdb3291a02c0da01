"""From the gateway to the tables: what its hub gets, and what a board sends over a broker with MQTT 5.0."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.values import encode
from headwater_spark.pipeline import run_on
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY
from tests.host.gateway_peers import recorded, running_gateway
from tests.host.hub_client import Peer, config, hub_of
from tests.host.test_gateway_hub import hub_source
from tests.host.test_gateway_remote_hub import consuming, left
from tests.spark.logs import InProcess, rows
from tests.waiting import until
from tools.broker import HOST, Mosquitto
from tools.demo.boards import DemoBoard


def test_what_the_gateway_lands_becomes_tables(tmp_path: Path) -> None:
    broken = b"\x36\x31\x01\x03\xb0\x15\x00"

    async def land() -> None:
        async with hub_source(tmp_path) as (source, _, _):
            peer = await Peer.login(source.hub, "board")
            for seq in range(6):
                values = {"board": "b7", "boot": 1, "seq": seq, "celsius": 20.5 + seq}
                ident = await peer.send_message("plant/1", encode(values), seq % 3, tags=("raw",))
                if seq % 3 == 1:
                    await peer.send_message(
                        "plant/1", encode(values), 1, tags=("raw",), ident=ident, dup=True
                    )
            hashed = peer.send(spec.PUBLISH, (hash_of("plant/1"), b"\xd0", encode({"celsius": 1.0})), 1 << 1)
            assert (await peer.answer(hashed)).code == 0
            peer.raw(broken)
            await peer.ended()

    asyncio.run(land())
    result = run_on(InProcess(), tmp_path / "log", tmp_path / "out")
    found = rows(tmp_path / "out", MESSAGES, "board", "seq", "topic", "tags", "qos", "copies")
    wanted = [("b7", seq, "plant/1", ["raw"], seq % 3, 1 + (seq % 3 == 1)) for seq in range(6)]
    assert found == [*wanted, (None, None, "plant/1", [], 1, 1)]
    values = rows(tmp_path / "out", TELEMETRY, "metric", "value_double")
    assert values == sorted([("celsius", 20.5 + seq) for seq in range(6)] + [("celsius", 1.0)], key=repr)
    assert rows(tmp_path / "out", QUARANTINE, "kind", "reason", "bytes") == [("frame", "bad_qos", broken)]
    assert result.duplicates == 2


def test_messages_of_a_hubs_consumer_group_become_tables_batch_by_batch(tmp_path: Path) -> None:
    """What is acknowledged to the hub is in the log, and a message goes into the tables once."""

    async def consume(numbers: range) -> None:
        async with hub_of(config(tmp_path)) as hub, consuming(tmp_path, hub, "plant/+") as (_, recorder, *_):
            peer = await Peer.login(hub, "board")
            for seq in numbers:
                values = {"board": "b7", "boot": 1, "seq": seq, "celsius": 20.5 + seq}
                await peer.send_message(f"plant/{seq % 2}", encode(values), 1, tags=("raw",))
            await until(lambda: recorder.durable == len(numbers) and left(hub) == 0)

    for numbers in (range(5), range(5, 9)):
        asyncio.run(consume(numbers))
        assert run_on(InProcess(), tmp_path / "log", tmp_path / "out").rows["messages"] == len(numbers)
    found = rows(tmp_path / "out", MESSAGES, "board", "seq", "topic", "tags", "copies")
    assert found == [("b7", seq, f"plant/{seq % 2}", ["raw"], 1) for seq in range(9)]
    values = rows(tmp_path / "out", TELEMETRY, "metric", "value_double")
    assert values == sorted([("celsius", 20.5 + seq) for seq in range(9)], key=repr)


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
def test_the_properties_of_a_boards_messages_are_in_the_table(
    tmp_path: Path, mosquitto: Callable[..., Mosquitto]
) -> None:
    broker = mosquitto()
    how: dict[str, object] = {"host": HOST, "port": broker.port, "version": 5, "send_record": False}
    demo = DemoBoard("b2", tmp_path / "b2", how, period_ms=20)
    demo.set_time(0.5)
    with running_gateway(tmp_path, broker=broker.port, topics=["headwater/+/telemetry:2"]) as gateway:
        gateway.wait_for("subscribed")
        with demo.board as board:
            board.wait_for("done:", 120)
        sent = demo.record().acknowledged
        assert sent
        deadline = time.monotonic() + 120
        while len(list(recorded(tmp_path / "log"))) < len(sent):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    run_on(InProcess(), tmp_path / "log", tmp_path / "out")
    found = rows(
        tmp_path / "out", MESSAGES, "boot", "seq", "content_type", "message_expiry", "user_properties"
    )
    assert {row[:2] for row in found} >= set(sent)
    for _, _, content_type, expiry, properties in found:
        assert content_type == "application/json"
        assert 0 < expiry <= 3600
        assert dict(properties) == {"board": "b2", "program": "telemetry.py"}
