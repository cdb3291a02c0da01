"""From the gateway's hub to the tables: published, retransmitted and malformed messages, and a consumer's."""

import asyncio
from pathlib import Path

from headwater.fmq import spec
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.values import encode
from headwater_spark.pipeline import run_on
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY
from tests.host.hub_client import Peer
from tests.host.test_gateway_hub import hub_source
from tests.spark.logs import InProcess, rows


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
