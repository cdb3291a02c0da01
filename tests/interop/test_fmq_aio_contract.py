"""What FMQ's contract says of the host's client: what it sends again, and what it answers, byte for byte."""

import asyncio
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater.fmq.frames_hub import time_at
from headwater_host.client.fmq import Reconnect, SessionOptions
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import ProtocolError
from headwater_host.fmq.values import decode_at
from tests.host.hub_client import new_id
from tests.interop.fmq_peers import PROCESS, SECONDS, Line, client, scripted
from tests.waiting import until

QUICK = Reconnect(first=0.001, longest=0.01)


def made(ident: bytes) -> int:
    """When a message id was made."""
    return int(decode_at(ident, time_at(ident, 0), len(ident))[0].nanoseconds)


def test_what_is_sent_again_has_dup_and_its_id_and_pubrel_takes_its_place() -> None:
    seen: list[list[tuple[int, bytes]]] = []

    async def cut(line: Line) -> None:
        await line.accept()
        seen.append([await line.frame() for _ in range(3)])
        # PUBREC of the last one, then the connection is lost; its PUBREL may or may not have left.
        line.say(spec.PUBREC << 4, seen[0][2][1])
        assert await line.frame() == (spec.PUBREL << 4, seen[0][2][1])

    async def answer(line: Line) -> None:
        await line.accept(present=True)
        seen.append([await line.frame() for _ in range(3)])
        for (_, ident), kind in zip(seen[1], (spec.ACK, spec.PUBREC, spec.PUBCOMP), strict=True):
            line.say(kind << 4, ident)
        assert await line.frame() == (spec.PUBREL << 4, seen[1][1][1])
        line.say(spec.PUBCOMP << 4, seen[1][1][1])
        seen.append([await line.frame()])
        line.say(spec.ACK << 4, seen[2][0][1])
        await line.ended()

    async def main() -> None:
        async with (
            scripted(cut, answer) as where,
            client(where, session=SessionOptions(clean_start=False), reconnect=QUICK) as c,
        ):
            await asyncio.gather(*(c.publish("t", b"", qos, retain=True) for qos in (1, 2, 2)))
            await c.publish("t", b"", 1)

    asyncio.run(asyncio.wait_for(main(), 4 * SECONDS))
    first, second, (last,) = seen
    assert [head for head, _ in first] == [0x33, 0x35, 0x35]
    assert [head for head, _ in second] == [0x3B, 0x3D, spec.PUBREL << 4]
    assert last[0] == 0x32
    ids = [ident for _, ident in first]
    assert [ident for _, ident in second] == ids
    assert {ident[:2] for ident in ids} == {bytes((spec.PUBLISH << 4 | 1, PROCESS))}
    times = [made(ident) for ident in (*ids, last[1])]
    assert sorted(set(times)) == times


async def test_a_ping_is_answered_and_what_is_between_hubs_is_not_the_clients() -> None:
    said: list[tuple[int, bytes]] = []
    ping, elect = new_id(spec.PINGREQ), new_id(spec.ELECT)

    async def script(line: Line) -> None:
        await line.accept()
        line.say(spec.PINGREQ << 4, ping)
        said.append(await line.frame())
        line.say(spec.ELECT << 4, elect, bytes.fromhex("440100007f501e"), 5)
        said.append(await line.frame())
        await line.ended()

    with pytest.raises(ProtocolError):
        async with scripted(script) as where, client(where) as c:
            await asyncio.wait_for(c.messages.__anext__(), SECONDS)
    await until(lambda: len(said) == 2)
    assert said == [(spec.ACK << 4, ping), (spec.ACK << 4, elect)]


def test_ids_go_on_over_the_end_of_the_process(tmp_path: Path) -> None:
    ids: list[bytes] = []

    async def script(line: Line) -> None:
        await line.accept()
        head, ident = await line.frame()
        assert head >> 4 == spec.PUBLISH
        ids.append(ident)
        line.say(spec.ACK << 4, ident)
        await line.ended()

    async def main() -> None:
        async with scripted(script) as where:
            for _ in range(3):
                box = SqliteOutbox(tmp_path / "box.db", "c", protocol="fmq")
                async with client(where, session=SessionOptions(store=box)) as c:
                    await c.publish("t", b"", 1)
                box.close()

    asyncio.run(asyncio.wait_for(main(), 4 * SECONDS))
    times = [made(ident) for ident in ids]
    assert sorted(set(times)) == times
