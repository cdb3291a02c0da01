"""A hub is killed (SIGKILL) at random under publishers and consumers; what they see is written down and checked.

    python -m tests.host.hub_history --operations 100000 --seed 7

Publishers send at QoS 1 and 2, and send again, with the same id, what was not answered when the hub died. Consumers of
a group die now and then before they acknowledge. A subscriber whose session is kept keeps the ids of QoS 2, as a client
does. The history is wrong when

- a message was acknowledged to its publisher, and the group or the subscriber never gets it (lost);
- a message comes again that was acknowledged by a consumer, and that was on the disk; or, to the subscriber, one at
  QoS 2 comes again at all (doubled);
- somebody gets a publisher's message for the first time behind a later one of the same publisher (reordered).

That an acknowledgement was on the disk is known when the hub answered a PINGREQ behind it, and then, while it was still
the same process, a PUBLISH that was sent after that.
"""

import argparse
import asyncio
import contextlib
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater.fmq import spec
from tests.host.command import Running
from tests.host.hub_client import Got, Peer, new_id

PUBLISHERS, CONSUMERS, QUEUES = 4, 3, 4
#: Messages that a publisher has unanswered, and a consumer unacknowledged.
WINDOW = 16
#: Seconds in which something happens, or nothing does any more.
PATIENCE = 60
_LOST = (EOFError, ConnectionError)
_CONFIG = "[limits]\ntries = 1000000\n[clients]\nredelivery = 3600\n"


class History:
    """What was seen, and what is wrong with it."""

    def __init__(self) -> None:
        self.operations = 0
        #: By publisher: which of its messages were acknowledged.
        self.acknowledged: set[tuple[int, int]] = set()
        #: By who gets them: the last new message of each publisher, and all of them.
        self._last: dict[tuple[str, int], int] = {}
        self.got: dict[str, set[tuple[int, int]]] = {"group": set(), "subscriber": set()}
        #: Acknowledged by a consumer, and known to the hub that runs; known to the disk.
        self.known: list[tuple[int, int]] = []
        self.durable: set[tuple[int, int]] = set()
        #: How often the hub was started.
        self.life = 0
        self.again: Counter[str] = Counter()
        #: By publisher: how far the group is in its messages.
        self.reached: Counter[int] = Counter()
        self.wrong: list[str] = []

    def delivered(self, who: str, message: tuple[int, int], qos: int) -> None:
        """Somebody got a message."""
        self.operations += 1
        publisher, n = message
        if message in self.got[who]:
            self.again[who] += 1
            if who == "group" and message in self.durable:
                self.wrong.append(f"doubled: the group has acknowledged {message}, and gets it again")
            if who == "subscriber" and qos == 2:
                self.wrong.append(f"doubled: the subscriber gets {message} again, at QoS 2")
            return
        self.got[who].add(message)
        if who == "group":
            self.reached[publisher] = max(n + 1, self.reached[publisher])
        last = self._last.get((who, publisher), -1)
        if n < last:
            self.wrong.append(f"reordered: {who} gets {message} for the first time behind {last}")
        self._last[who, publisher] = max(n, last)

    def killed(self) -> None:
        """What the disk does not know is forgotten."""
        self.life += 1
        self.known.clear()

    def missing(self) -> list[tuple[str, tuple[int, int]]]:
        """What was acknowledged to its publisher and has not arrived."""
        return [(who, one) for who, got in self.got.items() for one in sorted(self.acknowledged - got)]


class World:
    """The hub, and where it is."""

    def __init__(self, directory: Path, seed: int, messages: int):
        self.directory = directory
        self.chance = random.Random(seed)
        self.seed = seed
        self.messages = messages
        #: Everything was, and is acknowledged: it is not killed any more.
        self.published = False
        self.history = History()
        self._hub: Running | None = None
        self._at: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        (directory / "hub.toml").write_text(_CONFIG)

    async def start(self) -> None:
        """Start the hub on any port."""
        arguments = ["hub", "--config", "hub.toml", "--storage", "hub.db", "--port", "0"]
        hub = self._hub = Running(arguments, self.directory, cwd=self.directory)
        await asyncio.to_thread(hub.wait_for, "listening on")
        found = re.search(r"listening on (\S+), port (\d+)", hub.errors)
        assert found
        self._at.set_result((found[1], int(found[2])))

    async def kill(self) -> None:
        """Kill the hub."""
        assert self._hub is not None
        assert self._hub.process.poll() is None, self._hub.errors
        self._at = asyncio.get_running_loop().create_future()
        self.history.killed()
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

    async def login(self, name: str, **more: Any) -> Peer:
        """A connection to the hub, as soon as there is one."""
        while True:
            address = await asyncio.shield(self._at)
            with contextlib.suppress(*_LOST, OSError):
                return await Peer.login(address, name, **more)
            await asyncio.sleep(0)


class Publisher:
    """Publishes message after message, until all of them are acknowledged."""

    def __init__(self, world: World, number: int):
        self._world = world
        self._number = number
        self._name = f"publisher {number}"
        chance = random.Random(f"{world.seed}.{number}")
        self._qos = [chance.choice((1, 2)) for _ in range(world.messages)]
        self._idents: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        #: By message, what has to be sent: itself, or PUBREL.
        self._unanswered: dict[int, int] = {}
        self._next = 0
        #: How much was known to the hub when a message was sent on this connection.
        self._known: dict[int, int] = {}

    @property
    def _busy(self) -> bool:
        return self._next < self._world.messages or bool(self._unanswered)

    @property
    def _may_send(self) -> bool:
        """Those who get the messages are not to be far behind: then what they acknowledge is among what is written."""
        world = self._world
        ahead = self._next - world.history.reached[self._number]
        return self._next < world.messages and len(self._unanswered) < WINDOW and ahead < 2 * WINDOW

    async def run(self) -> None:
        while self._busy:
            peer = await self._world.login(self._name)
            try:
                await self._talk(peer, self._world.history.life)
            except _LOST:
                pass
            finally:
                peer.abort()

    async def _talk(self, peer: Peer, life: int) -> None:
        self._known.clear()
        for n in self._unanswered:
            self._send(peer, n, again=True)
        while self._busy:
            while self._may_send:
                # If sending fails it is one of those that are sent again.
                self._next += 1
                self._send(peer, self._next - 1, again=False)
            if self._unanswered:
                self._take(peer, await peer.next(), life)
            else:
                await asyncio.sleep(0.001)
                await peer.ping()

    def _send(self, peer: Peer, n: int, *, again: bool) -> None:
        ident = self._idents.setdefault(n, new_id(spec.PUBLISH, peer.process))
        self._numbers[ident] = n
        self._known[n] = len(self._world.history.known)
        if self._unanswered.setdefault(n, spec.PUBLISH) == spec.PUBREL:
            peer.send(spec.PUBREL, ident=ident)
        else:
            self._world.history.operations += 1
            peer.publish("t", b"%d %d" % (self._number, n), self._qos[n], ident=ident, dup=again)

    def _take(self, peer: Peer, got: Got, life: int) -> None:
        history = self._world.history
        assert got.code == 0, got
        n = self._numbers[got.id]
        if got.kind == spec.PUBREC:
            self._unanswered[n] = spec.PUBREL
            peer.send(spec.PUBREL, ident=got.id)
        else:
            del self._unanswered[n]
        if got.kind != spec.PUBCOMP:
            history.operations += 1
            history.acknowledged.add((self._number, n))
            if life == history.life:
                history.durable.update(history.known[: self._known[n]])


def _message(got: Got) -> tuple[int, int]:
    publisher, n = got.payload.split()
    return int(publisher), int(n)


async def consume(world: World, number: int) -> None:
    """Consume as one of the group, and die now and then."""
    history, chance = world.history, random.Random(f"{world.seed} {number}")
    while True:
        peer = await world.login("")
        life = history.life
        try:
            peer.consume(await peer.subscribe("t", group="g"), WINDOW)
            left = chance.randrange(20, 400)
            taken: list[Got] = []
            #: By the id of the PINGREQ behind it.
            acknowledged: dict[bytes, list[tuple[int, int]]] = {}
            while left > 0:
                got = await peer.next()
                if got.kind == spec.ACK:
                    # To the PINGREQ: what was acknowledged before it is known.
                    if life == history.life:
                        history.known += acknowledged.pop(got.id)
                    continue
                history.delivered("group", _message(got), 1)
                taken.append(got)
                left -= 1
                # What is kept back must not be what the hub waits for.
                if left and (chance.random() < 0.3 or len(taken) == WINDOW or not peer.more):
                    chance.shuffle(taken)
                    for one in taken:
                        peer.ack(one.id)
                        history.operations += 1
                    acknowledged[peer.send(spec.PINGREQ)] = [_message(one) for one in taken]
                    taken = []
        except _LOST:
            pass
        finally:
            peer.abort()


async def subscribe(world: World) -> None:
    """Get everything in a session that is kept; the ids of QoS 2 are kept here, as long as the hub may repeat them."""
    history = world.history
    held: set[bytes] = set()
    chance = random.Random(f"{world.seed} subscriber")
    subscribed = False
    while True:
        peer = await world.login("subscriber", clean=False)
        try:
            if not subscribed:
                await peer.subscribe("t")
                subscribed = True
            assert peer.present or history.life == 0
            left = chance.randrange(20, 600)
            while left > 0:
                got = await peer.next()
                left -= 1
                if got.kind == spec.PUBREL:
                    held.discard(got.id)
                    peer.send(spec.PUBCOMP, ident=got.id)
                    continue
                qos = got.flags >> 1
                if got.id not in held:
                    history.delivered("subscriber", _message(got), qos & 3)
                if qos & 3 == 2:
                    held.add(got.id)
                if chance.random() < 0.02:
                    break
                peer.send(spec.ACK if qos & 3 == 1 else spec.PUBREC, ident=got.id)
                history.operations += 1
        except _LOST:
            pass
        finally:
            peer.abort()


async def _kill(world: World, between: int) -> None:
    """Kill the hub again and again, after so many operations as chance has it."""
    while True:
        wanted = world.history.operations + world.chance.randrange(1, 2 * between)
        while world.history.operations < wanted:
            if world.published:
                return
            await asyncio.sleep(0.001)
        await world.kill()
        await world.start()


async def _run(directory: Path, operations: int, seed: int, between: int) -> History:
    # A message is published, acknowledged, delivered to two and acknowledged by both.
    world = World(directory, seed, max(1, operations // 6 // PUBLISHERS))
    history = world.history
    tasks: list[asyncio.Task[None]] = []
    try:
        await world.start()
        peer = await world.login("")
        assert (await peer.ask(spec.REGISTER, (b"t", QUEUES))).code == 0
        # Nobody consumes yet, but both are to get everything.
        await peer.subscribe("t", group="g")
        session = await world.login("subscriber", clean=False)
        await session.subscribe("t")
        publishers = [asyncio.create_task(Publisher(world, n).run()) for n in range(PUBLISHERS)]
        others = [asyncio.create_task(consume(world, n)) for n in range(CONSUMERS)]
        others.append(asyncio.create_task(subscribe(world)))
        killer = asyncio.create_task(_kill(world, between))
        tasks = [*publishers, *others, killer]
        with contextlib.suppress(_StalledError):
            # What is lost holds up its publisher.
            await _until(lambda: all(task.done() for task in publishers), tasks, history)
        world.published = True
        await killer
        with contextlib.suppress(_StalledError):
            await _until(lambda: not history.missing(), tasks, history)
        await _cancel([*publishers, *others])
        await world.end()
    finally:
        for task in tasks:
            task.cancel()
        world.abandon()
    history.wrong += [f"lost: {who} never got {message}" for who, message in history.missing()]
    return history


async def _cancel(tasks: "list[asyncio.Task[None]]") -> None:
    """End tasks; once may not be enough: before Python 3.12, wait_for may miss it when a frame comes just then."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)


class _StalledError(Exception):
    pass


async def _until(true: Callable[[], bool], tasks: "list[asyncio.Task[None]]", history: History) -> None:
    """Wait, as long as something happens. Raises what a task raised; _StalledError."""
    moved, operations = time.monotonic(), -1
    while not true():
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        await asyncio.sleep(0.01)
        if history.operations != operations:
            moved, operations = time.monotonic(), history.operations
        if time.monotonic() - moved > PATIENCE:
            raise _StalledError


def run(directory: Path, operations: int, seed: int, between: int = 400) -> History:
    """A history of about so many operations."""
    return asyncio.run(_run(directory, operations, seed, between))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--between", type=int, default=2000, help="operations between two kills, about")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        history = run(Path(directory), args.operations, args.seed, args.between)
    print(
        f"{history.operations} operations, {history.life} times killed, {len(history.acknowledged)} messages, "
        f"{len(history.durable)} of them acknowledged on the disk, "
        f"{dict(history.again)} came again, {time.monotonic() - began:.0f} s"
    )
    print("\n".join(history.wrong[:20]) or "nothing lost, doubled or reordered")
    return 1 if history.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
