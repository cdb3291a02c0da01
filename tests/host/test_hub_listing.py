"""The hub over real sockets: the list of its topics, which it answers itself when ``$hub/topics`` is called."""

from pathlib import Path
from typing import Any

from headwater.fmq import spec
from headwater_host.fmq.values import decode
from headwater_host.fmq.values import encode as value
from headwater_host.hub.service import Hub
from headwater_host.hub.topic_list import PAGE
from tests.host.hub_client import Peer, config, hub_of
from tests.host.test_hub_rpc import call, refusal
from tests.rows import each_row


async def page(peer: Peer, *arguments: Any) -> dict[str, Any]:
    ident = call(peer, "$hub/topics", b"".join(value(each) for each in arguments))
    got = await peer.answer_or_response(ident)
    assert got.kind == spec.CONSUMERESP, got
    found: dict[str, Any] = decode(got.payload)
    return found


async def test_topics_are_listed(tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with hub_of(settings) as hub:
        peer = await Peer.login(hub)
        assert await page(peer) == {"topics": [], "after": None}
        await peer.ask(spec.REGISTER, (b"b/x", 3))
        await peer.send_message("a", b"12345", 1)
        size = hub.broker.store.topics.bytes
        rows = [
            {"topic": "a", "queues": 1, "messages": 1, "bytes": size},
            {"topic": "b/x", "queues": 3, "messages": 0, "bytes": 0},
        ]
        assert await page(peer) == {"topics": rows, "after": None}
        assert await page(peer, "b/+") == {"topics": rows[1:], "after": None}
        assert await page(peer, None, "a") == {"topics": rows[1:], "after": None}
        await peer.ask(spec.UNREGISTER, (b"a",))
        await peer.ask(spec.REGISTER, (b"b/x", 4))
        assert [row["queues"] for row in (await page(peer))["topics"]] == [4]
    async with hub_of(settings) as hub:
        peer = await Peer.login(hub)
        assert [row["topic"] for row in (await page(peer))["topics"]] == ["b/x"]


async def test_many_topics_are_listed_in_pages(hub: Hub) -> None:
    count = 2 * PAGE + 1
    for n in range(count):
        hub.broker.registry.register(f"t/{n % 7}/{n}", 1)
    peer = await Peer.login(hub)
    for pattern in (None, "t/3/+"):
        found: list[str] = []
        after = None
        pages = 0
        while pages == 0 or after is not None:
            got = await page(peer, pattern, after)
            found += [row["topic"] for row in got["topics"]]
            after = got["after"]
            pages += 1
        assert pages == 3
        assert found == sorted(f"t/{n % 7}/{n}" for n in range(count) if pattern is None or n % 7 == 3)
    # Many requests at once, and somebody else between them.
    other = await Peer.login(hub)
    idents = [call(peer, "$hub/topics") for _ in range(50)]
    await other.ping()
    for ident in idents:
        assert (await peer.answer_or_response(ident)).correlation == ident


@each_row(
    "arguments, code",
    [
        (b"\x11", 0x99),
        (value(7), 0x99),
        (value(["a"]), 0x99),
        (value("a") * 3, 0x99),
        (value("a/#/b"), 0x8F),
        (value("a") + b"\x4f", 0x99),
        (b"\xd1\xff" * 40, 0x99),
    ],
    ids=["truncated", "number", "list", "three", "filter", "float", "counts"],
)
async def test_a_listing_with_wrong_arguments(hub: Hub, arguments: bytes, code: int) -> None:
    peer = await Peer.login(hub)
    assert (await refusal(peer, call(peer, "$hub/topics", arguments)))[0] == code
    assert (await refusal(peer, call(peer, "$hub/nothing")))[0] == 0x10
    assert await page(peer) == {"topics": [], "after": None}
