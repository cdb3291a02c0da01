"""The hub of a history, and its clients: publishers whose connections are cut, consumers who die, sessions, wills.

A consumer's acknowledgement is on the disk when a PUBLISH is acknowledged that the consumer has sent behind it. Other
clients prove nothing: they may talk to the next leader already.
"""

import asyncio
import contextlib
import random
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headwater.fmq import spec
from tests.host.command import HEADWATER, Running
from tests.host.history import AUDIT, CLEARED, GROUP, SESSION, Checker, Event
from tests.host.hub_client import Got, Peer, new_id

#: Messages that a publisher has unanswered, and a consumer unacknowledged.
WINDOW = 16
#: Messages that a publisher sends before the group and the session get one of them.
BEHIND_MOST = 2 * WINDOW
#: Connections of publishers are cut at every byte up to this one, in either direction; then at random.
EVERY_BYTE = 600
#: What ends a connection.
LOST = (EOFError, ConnectionError)
#: The topic of messages behind acknowledgements.
BEHIND = "behind"
#: Of each topic.
QUEUES = 4
#: Unacknowledged messages of an audit: all of them.
MUCH = 1_000_000
#: A call without a result: no responder; lost or refused.
_NO_RESULT = (0x10, 0x83, 0x97)
CONFIG = f"[limits]\ntries = 1000000\n[clients]\nredelivery = 3600\nwindow = {MUCH}\nrpc = 5\n"
#: Events in which nobody does anything.
_INFERRED = {"done", "cut", "killed", "fault", "end"}
#: Events of calls, which go on for ever.
_ENDLESS = {"called", "answered", "made"}


class CutPeer(Peer):
    """A client whose connection is cut when so many bytes were sent, or received; 0: never."""

    up = down = 0
    was_cut = False

    def raw(self, data: "bytes | bytearray") -> None:
        if 0 < self.up <= len(data):
            super().raw(data[: self.up])
            self._writer.close()
            self.was_cut = True
            raise ConnectionResetError
        self.up -= len(data) if self.up else 0
        super().raw(data)

    async def receive(self) -> bytes:
        data = await super().receive()
        if 0 < self.down <= len(data):
            self.abort()
            self.was_cut = True
            raise ConnectionResetError
        self.down -= len(data) if self.down else 0
        return data


def cuts(chance: random.Random) -> Iterator[tuple[int, int]]:
    """Where one connection after the other is cut: bytes sent, bytes received; 0: not at all."""
    for n in range(1, EVERY_BYTE + 1):
        yield n, 0
        yield 0, n
    while True:
        n = chance.randrange(1, 20_000)
        yield (n, 0) if chance.random() < 0.5 else (0, n)


class World:
    """The hub, where it is, and what has happened."""

    #: What its clients are.
    peer: "type[CutPeer]" = CutPeer

    def __init__(self, directory: Path, seed: int, messages: int, command: Sequence[str] = HEADWATER):
        self._directory = directory
        self._command = command
        self.chance = random.Random(seed)
        self.seed = seed
        #: Messages of each publisher, which may be lowered; and whether all of them are published.
        self.messages = messages
        self.published = False
        #: How often the hub was started again, and what has happened so far.
        self.life = self.operations = self.audits = 0
        #: Operations without those of calls, which never end.
        self.advanced = 0
        self.cuts = cuts(self.chance)
        #: By publisher, how far the group and the session are.
        self.reached: dict[str, dict[int, int]] = {GROUP: {}, SESSION: {}}
        self.events: list[Event] = []
        self.checker = Checker()
        self._hub: Running | None = None
        self._at: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        (directory / "hub.toml").write_text(CONFIG)

    # -- what happens ------------------------------------------------------------------------------------------------

    def see(self, *event: Any) -> None:
        """Write down an event."""
        self.operations += event[0] not in _INFERRED
        self.advanced += event[0] not in _INFERRED | _ENDLESS
        self.events.append(event)
        self.checker.see(event)

    def reach(self, who: str, publisher: int, n: int) -> None:
        """Note how far the group or the session is."""
        reached = self.reached[who]
        reached[publisher] = max(n + 1, reached.get(publisher, 0))

    # -- the hub -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the hub on any port."""
        arguments = ["hub", "--config", "hub.toml", "--storage", "hub.db", "--port", "0"]
        hub = self._hub = Running(arguments, self._directory, self._command, cwd=self._directory)
        await asyncio.to_thread(hub.wait_for, "listening on")
        found = re.search(r"listening on (\S+), port (\d+)", hub.errors)
        assert found
        self._at.set_result((found[1], int(found[2])))

    async def kill(self) -> None:
        """Kill the hub: what it knows and the disk does not is forgotten."""
        assert self._hub is not None
        assert self._hub.process.poll() is None, self._hub.errors
        self._at = asyncio.get_running_loop().create_future()
        self.life += 1
        self.see("killed")
        self._hub.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._hub.wait)
        assert "Traceback" not in self._hub.errors, self._hub.errors

    async def end(self) -> None:
        """End it in good order."""
        assert self._hub is not None
        assert await asyncio.to_thread(self._hub.end) == 0, self._hub.errors
        assert "Traceback" not in self._hub.errors, self._hub.errors

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self._hub is not None and self._hub.process.poll() is None:
            self._hub.process.kill()
            self._hub.process.wait()

    async def login(
        self, name: str, cut: tuple[int, int] = (0, 0), *, once: bool = False, **more: Any
    ) -> CutPeer:
        """A connection to the hub, as soon as there is one; it is cut when so much was sent, or received. ``once``:
        raises EOFError or ConnectionError if there is none."""
        missed = 0
        while True:
            address = await self.address(missed)
            with contextlib.suppress(*(() if once else LOST)):
                missed += 1
                peer = await self.peer.open(address)
                assert isinstance(peer, CutPeer)
                peer.up, peer.down = cut
                if cut != (0, 0):
                    self.see("cut", *cut)
                try:
                    answer = await peer.auth(name, **more)
                    assert answer.code == 0, answer
                    self.reached_hub(address)
                    return peer
                except LOST:
                    peer.abort()
                    missed -= peer.was_cut
                    if cut != (0, 0):
                        cut = next(self.cuts)
                    raise
            await asyncio.sleep(0)

    async def address(self, missed: int) -> tuple[str, int]:
        """Where the next connection goes to, when so many have failed."""
        return await asyncio.shield(self._at)

    def lost_hub(self) -> None:
        """A hub has ended a publisher's connection."""

    def reached_hub(self, address: tuple[str, int]) -> None:
        """The hub at this address has accepted a client."""


class Publisher:
    """Publishes message after message, until all of them are acknowledged, or given up: a few are when the connection
    is lost, so that what was delivered and is not stored stays so."""

    def __init__(self, world: World, number: int):
        self._world = world
        self._number = number
        self._chance = random.Random(f"{world.seed}.{number}")
        self._qos: dict[int, int] = {}
        self._idents: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        #: By message, what has to be sent: itself, or PUBREL.
        self._unanswered: dict[int, int] = {}
        self._next = 0

    @property
    def _busy(self) -> bool:
        return self._next < self._world.messages or bool(self._unanswered)

    @property
    def _may_send(self) -> bool:
        """Those who get the messages are not to be far behind: then what they acknowledge is among what is written, and
        a session that is continued does not get very many messages again."""
        behind = [self._next - reached.get(self._number, 0) for reached in self._world.reached.values()]
        return (
            self._next < self._world.messages and len(self._unanswered) < WINDOW and max(behind) < BEHIND_MOST
        )

    async def run(self) -> None:
        while self._busy:
            peer = await self._world.login(f"publisher {self._number}", next(self._world.cuts))
            try:
                await self._talk(peer)
            except LOST:
                self._give_up()
                if not peer.was_cut:
                    self._world.lost_hub()
            finally:
                peer.abort()

    def _give_up(self) -> None:
        for n, kind in list(self._unanswered.items()):
            if kind == spec.PUBLISH and self._chance.random() < 0.01:
                del self._unanswered[n]

    async def _talk(self, peer: Peer) -> None:
        for n in self._unanswered:
            self._send(peer, n, again=True)
        while self._busy:
            while self._may_send:
                # If sending fails it is one of those that are sent again.
                self._next += 1
                self._send(peer, self._next - 1, again=False)
            if self._unanswered:
                self._take(peer, await peer.next())
            else:
                await asyncio.sleep(0.001)
                await peer.ping()

    def _send(self, peer: Peer, n: int, *, again: bool) -> None:
        ident = self._idents.get(n)
        if ident is None:
            ident = self._idents[n] = new_id(spec.PUBLISH, peer.process)
        self._numbers[ident] = n
        if self._unanswered.setdefault(n, spec.PUBLISH) == spec.PUBREL:
            peer.send(spec.PUBREL, ident=ident)
        else:
            self._world.see("sent", self._number, n)
            qos = self._qos.setdefault(n, self._chance.choice((1, 2)))
            peer.publish("t", b"%d %d" % (self._number, n), qos, ident=ident, dup=again)

    def _take(self, peer: Peer, got: Got) -> None:
        assert got.code == 0, got
        n = self._numbers[got.id]
        if got.kind != spec.PUBCOMP:
            self._world.see("acked", self._number, n)
        if got.kind == spec.PUBREC:
            self._unanswered[n] = spec.PUBREL
            peer.send(spec.PUBREL, ident=got.id)
        else:
            del self._unanswered[n]


class _Acknowledged:
    """What was acknowledged on one connection, and when that is on the disk."""

    def __init__(self, world: World, peer: Peer, who: str):
        self._world = world
        self._peer = peer
        self._who = who
        self._behind: dict[bytes, list[Got]] = {}

    def ask(self, messages: list[Got]) -> None:
        """These were acknowledged just now."""
        self._behind[self._peer.publish(BEHIND, b"", 1)] = messages

    def answered(self, got: Got) -> bool:
        """Whether it is the answer to the PUBLISH behind acknowledgements."""
        if got.kind != spec.ACK:
            return False
        assert got.code == 0, got
        for one in self._behind.pop(got.id):
            self._world.see("done", self._who, *message_of(one))
        return True


def message_of(got: Got) -> tuple[int, int]:
    """Whose message it is, and which."""
    publisher, n = got.payload.split()
    return int(publisher), int(n)


async def consume(world: World, number: int) -> None:
    """Consume as one of the group, and die now and then before something is acknowledged."""
    chance = random.Random(f"{world.seed} {number}")
    while True:
        peer = await world.login("")
        acknowledged = _Acknowledged(world, peer, GROUP)
        try:
            peer.consume(await peer.subscribe("t", group="g"), WINDOW)
            left = chance.randrange(20, 400)
            taken: list[Got] = []
            while left > 0:
                got = await peer.next()
                if not acknowledged.answered(got):
                    publisher, n = message_of(got)
                    world.see("got", GROUP, publisher, n, 1)
                    world.reach(GROUP, publisher, n)
                    taken.append(got)
                    left -= 1
                # What is kept back must not be what the hub waits for.
                if taken and left and (chance.random() < 0.3 or len(taken) == WINDOW or not peer.more):
                    chance.shuffle(taken)
                    for one in taken:
                        peer.ack(one.id)
                    acknowledged.ask(taken)
                    taken = []
        except LOST:
            pass
        finally:
            peer.abort()


async def subscribe(world: World) -> None:
    """Get everything in a session that is kept; the ids of QoS 2 are kept here, as long as the hub may repeat them."""
    held: set[bytes] = set()
    chance = random.Random(f"{world.seed} subscriber")
    subscribed = False
    while True:
        peer = await world.login("subscriber", clean=False)
        acknowledged = _Acknowledged(world, peer, SESSION)
        try:
            if not subscribed:
                await peer.subscribe("t")
                subscribed = True
            assert peer.present or world.life == 0
            left = chance.randrange(20, 600)
            while left > 0:
                got = await peer.next()
                if acknowledged.answered(got):
                    continue
                left -= 1
                if got.kind == spec.PUBREL:
                    held.discard(got.id)
                    peer.send(spec.PUBCOMP, ident=got.id)
                    continue
                qos = got.flags >> 1 & 3
                if got.id not in held:
                    publisher, n = message_of(got)
                    world.see("got", SESSION, publisher, n, qos)
                    world.reach(SESSION, publisher, n)
                if qos == 2:
                    held.add(got.id)
                if chance.random() < 0.02:
                    break
                peer.send(spec.ACK if qos == 1 else spec.PUBREC, ident=got.id)
                if chance.random() < 0.1:
                    acknowledged.ask([got])
        except LOST:
            pass
        finally:
            peer.abort()


async def listen(world: World) -> None:
    """Get what comes while a connection lasts, and no session is kept."""
    chance = random.Random(f"{world.seed} listener")
    connection = 0
    while True:
        peer = await world.login("")
        connection += 1
        try:
            await peer.subscribe("t")
            for _ in range(chance.randrange(20, 600)):
                got = await peer.next()
                if got.kind == spec.PUBREL:
                    peer.send(spec.PUBCOMP, ident=got.id)
                    continue
                world.see("pushed", connection, *message_of(got))
                peer.send(spec.ACK if got.flags >> 1 & 3 == 1 else spec.PUBREC, ident=got.id)
        except LOST:
            pass
        finally:
            peer.abort()


async def die(world: World) -> None:
    """Connect with a will, and die, leave, be taken over, or be there when the hub dies."""
    chance = random.Random(f"{world.seed} mortal")
    k = 0
    while not world.published:
        k += 1
        world.see("will", k, "asked")
        life = world.life
        with contextlib.suppress(*LOST):
            peer = await world.login(f"mortal {k}", once=True, will=(b"wills", 1, False, b"%d" % k))
            world.see("will", k, "kept")
            ends = chance.choice(("die", "leave", "taken over", "stay"))
            if ends == "leave":
                await _leave(world, peer, k, life)
                continue
            world.see("will", k, "lost")
            if ends == "taken over":
                (await world.login(f"mortal {k}")).abort()
            elif ends == "stay":
                await later(world, 1000, life)
            peer.abort()
        await later(world, 100)


async def _leave(world: World, peer: Peer, k: int, life: int) -> None:
    """Say goodbye. That the hub ends the connection is its answer, unless it was killed or leads no longer."""
    world.see("will", k, "leaving")
    peer.ack(peer.auth_id)
    with contextlib.suppress(EOFError):
        while (await peer.next()).kind != spec.ACK:
            pass
        return
    if life == world.life:
        world.see("will", k, "left")


async def later(world: World, operations: int, life: int | None = None) -> None:
    """Wait until so much has happened, or all is published, or the hub is not the same any more."""
    until = world.operations + operations
    while world.operations < until and not world.published and life in (None, world.life):
        await asyncio.sleep(0.002)


async def retain(world: World) -> None:
    """Have one state after the other retained, and look what is, now and then."""
    chance = random.Random(f"{world.seed} retained")
    acked, sent = -1, 0
    ident = b""
    while not world.published:
        peer = await world.login("keeper")
        try:
            while not world.published:
                ident = ident or new_id(spec.PUBLISH, peer.process)
                payload = b"" if sent % CLEARED == CLEARED - 1 else b"%d" % sent
                answer = await peer.answer(peer.publish("kept", payload, 1, retain=True, ident=ident))
                assert answer.code == 0, answer
                acked, sent, ident = sent, sent + 1, b""
                if chance.random() < 0.5:
                    await _look(world, acked)
                await later(world, 60)
        except LOST:
            # The message under way is stored or not.
            await _look(world, acked, acked + 1)
        finally:
            peer.abort()


async def _look(world: World, least: int, most: int | None = None) -> None:
    while True:
        peer = await world.login("")
        try:
            await peer.subscribe("kept")
            await peer.ping()
            seen = [int(got.payload) for got in peer.got if got.flags & 1]
            world.see("retained", least, least if most is None else most, seen[0] if seen else None)
            return
        except LOST:
            continue
        finally:
            peer.abort()


async def audit(world: World, topic: str) -> list[Event]:
    """What was stored in a topic since the last audit. It ends with a mark in every queue.

    Nothing is acknowledged before the end, so that an audit whose connection is lost begins anew.
    """
    while True:
        peer = await world.login("")
        try:
            return await _audit(world, topic, peer)
        except LOST:
            continue
        finally:
            peer.abort()


async def _audit(world: World, topic: str, peer: Peer) -> list[Event]:
    found: list[Event] = []
    world.audits += 1
    mark = b"mark %d" % world.audits
    for process in range(QUEUES):
        await peer.send_message(topic, mark, ident=new_id(spec.PUBLISH, process))
    peer.consume(await peer.subscribe(topic, group="audit"), MUCH)
    ends, idents = 0, []
    while ends < QUEUES:
        got = await peer.next()
        idents.append(got.id)
        if got.payload.startswith(b"mark"):
            ends += got.payload == mark
        elif topic == "t":
            found.append(("got", AUDIT, *message_of(got), 0))
        else:
            found.append(("willed", int(got.payload)))
    for ident in idents:
        peer.ack(ident)
    await peer.ping()
    # The acknowledgements in front of it are on the disk when it is answered.
    await peer.send_message("audited", b"")
    return found


async def call(world: World) -> None:
    """Make one remote procedure call after the other; a call whose connection is lost is not made again."""
    chance = random.Random(f"{world.seed} caller")
    k = 0
    while True:
        peer = await world.login("")
        try:
            for _ in range(chance.randrange(1, 100)):
                k += 1
                world.see("called", k)
                values = (b"echo", (), b"", b"", b"%d" % k)
                got = await peer.answer_or_response(peer.send(spec.CONSUME, values, spec.ONCE))
                if got.kind == spec.CONSUMERESP:
                    world.see("answered", k, int(got.payload))
                else:
                    assert got.code in _NO_RESULT, got
                await later(world, 40)
        except LOST:
            pass
        finally:
            peer.abort()


async def respond(world: World, number: int) -> None:
    """Answer remote procedure calls, and die now and then before the answer."""
    chance = random.Random(f"{world.seed} responder {number}")
    while True:
        peer = await world.login("")
        try:
            await peer.subscribe("$rpc/echo")
            left = chance.randrange(1, 50)
            while left > 0:
                got = await peer.next()
                if got.kind == spec.PUBLISH:
                    world.see("made", int(got.payload))
                    left -= 1
                    if left:
                        peer.publish("$rpc/reply", got.id + got.payload)
        except LOST:
            pass
        finally:
            peer.abort()
