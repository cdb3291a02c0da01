"""The hub over real sockets: calls in any order, by clients that come, go, refuse, repeat and lie.

Each call has one end, no call is made twice, and nothing is left.
"""

import random

import pytest

from headwater.fmq import spec
from headwater_host.hub.service import Hub
from tests.host.hub_client import Got, Peer, until
from tests.host.test_hub_rpc import call, outcomes, reply

TOPICS = ("a", "a/b", "c")
FILTERS = ("$rpc/a", "$rpc/a/+", "$rpc/#")


class History:
    """What happened, and what may happen next."""

    def __init__(self, hub: Hub, chance: random.Random):
        self.hub = hub
        self.chance = chance
        self.callers: list[Peer] = []
        self.responders: list[Peer] = []
        #: Calls that have no end yet, and whose they are; what was called with, by id.
        self.open: dict[bytes, Peer] = {}
        self.arguments: dict[bytes, bytes] = {}
        #: What a responder was asked and has not answered.
        self.asked: list[tuple[Peer, bytes]] = []
        self.made: set[bytes] = set()
        self.ends: dict[str, int] = {}

    async def step(self) -> None:
        does = self.chance.choice(
            [self.come, self.serve, self.call, self.call, self.call, self.take, self.take, self.answer, self.answer,
             self.refuse, self.lie, self.go, self.settle]
        )  # fmt: skip
        await does()

    async def come(self) -> None:
        if len(self.callers) < 4:
            self.callers.append(await Peer.login(self.hub))

    async def serve(self) -> None:
        if len(self.responders) < 4:
            peer = await Peer.login(self.hub)
            await peer.subscribe(self.chance.choice(FILTERS))
            self.responders.append(peer)

    async def call(self) -> None:
        if self.callers:
            peer = self.chance.choice(self.callers)
            arguments = b"%d" % len(self.arguments)
            ident = call(peer, self.chance.choice(TOPICS), arguments)
            self.open[ident] = peer
            self.arguments[ident] = arguments

    async def take(self) -> None:
        """What responders have been asked."""
        for peer in self.responders:
            await peer.ping()
            for got in peer.got:
                if got.kind == spec.ACK:
                    # A reply that nobody waited for.
                    assert got.code in (0x10, 0x99), got
                    continue
                assert got.kind == spec.PUBLISH, got
                assert got.id not in self.made, "made twice"
                self.made.add(got.id)
                assert got.payload == self.arguments[got.id]
                self.asked.append((peer, got.id))
            peer.got.clear()

    def chosen(self) -> "tuple[Peer, bytes] | None":
        if not self.asked:
            return None
        return self.asked.pop(self.chance.randrange(len(self.asked)))

    async def answer(self) -> None:
        chosen = self.chosen()
        if chosen is not None:
            peer, ident = chosen
            reply(peer, ident, b"of " + self.arguments[ident])
            if self.chance.random() < 0.2:
                reply(peer, ident, b"once more")

    async def refuse(self) -> None:
        chosen = self.chosen()
        if chosen is not None:
            peer, ident = chosen
            peer.send(spec.ACK, (0x80, b"refused"), ident=ident)

    async def lie(self) -> None:
        """Answer for somebody else, and what is no answer."""
        if self.responders and self.open:
            peer = self.chance.choice(self.callers + self.responders)
            ident = self.chance.choice(list(self.open))
            if (peer, ident) not in self.asked and peer in self.callers:
                reply(peer, ident, b"a lie")
                peer.send(spec.ACK, (0x80,), ident=ident)
            reply(peer, ident[:3], b"")

    async def go(self) -> None:
        """Somebody goes, without a word."""
        if self.chance.random() < 0.5 and self.callers:
            peer = self.callers.pop(self.chance.randrange(len(self.callers)))
            self.open = {ident: whose for ident, whose in self.open.items() if whose is not peer}
            peer.abort()
        elif self.responders:
            peer = self.responders.pop(self.chance.randrange(len(self.responders)))
            self.asked = [one for one in self.asked if one[0] is not peer]
            peer.abort()

    async def settle(self) -> None:
        """What has come to callers."""
        for peer in self.callers:
            await peer.ping()
            for got in peer.got:
                self.ended(peer, got)
            peer.got.clear()

    def ended(self, peer: Peer, got: Got) -> None:
        ident = got.correlation if got.kind == spec.CONSUMERESP else got.id
        if got.kind == spec.ACK and ident[0] >> 4 == spec.PUBLISH:
            assert got.code in (0x10, 0x99)
            return
        assert self.open.pop(ident) is peer, "an end too many, or somebody else's"
        if got.kind == spec.CONSUMERESP:
            assert got.payload == b"of " + self.arguments[ident]
            how = "result"
        else:
            how = {0x10: "nobody", 0x83: "lost", 0x80: "refused"}[got.code]
        self.ends[how] = self.ends.get(how, 0) + 1


@pytest.mark.parametrize("seed", range(2))
async def test_calls_in_any_order(hub: Hub, seed: int) -> None:
    history = History(hub, random.Random(seed))
    for _ in range(400):
        await history.step()
    # All calls have come. Then whoever serves goes: what is open ends.
    await history.settle()
    for peer in history.responders:
        peer.abort()
    await until(lambda: "headwater_hub_calls 0\n" in hub.broker.metrics.text())
    await history.settle()
    assert not history.open
    assert history.ends.keys() >= {"result", "nobody", "refused"}
    # The hub tells the same.
    over = outcomes(hub)
    assert over["answered"] >= history.ends["result"]
    assert sum(over.values()) >= len(history.made)
    for peer in history.callers:
        peer.abort()
    await until(lambda: not hub.broker.connections)
