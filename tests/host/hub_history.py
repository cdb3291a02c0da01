"""A hub is killed (SIGKILL) at random under publishers and consumers; what they see is written down and checked.

    python -m tests.host.hub_history --operations 100000 --seed 7

Publishers send at QoS 1 and 2 over connections that are cut at every byte, in both directions, and send again, with the
same id, what was not answered. Consumers of a group die now and then before they acknowledge. There are a session that
is kept, broadcast subscriptions that are not, clients with wills, and a topic of which the last message is retained.
What may be wrong is in ``history``; who does what, in ``history_actors``.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from headwater.fmq import spec
from tests.host.command import HEADWATER
from tests.host.history import AUDIT, GROUP, SESSION, Event
from tests.host.history_actors import (
    LOST,
    QUEUES,
    Publisher,
    World,
    audit,
    call,
    consume,
    die,
    listen,
    respond,
    retain,
    subscribe,
)

PUBLISHERS, CONSUMERS, RESPONDERS = 4, 3, 2
#: A message is published, acknowledged, and got by the group, a session, a listener and the audit.
_PER_MESSAGE = 6
#: Seconds in which something happens, or nothing does any more.
PATIENCE = 200


async def _kill(world: World, between: int) -> None:
    """Kill the hub again and again, after so many operations as chance has it."""
    while between:
        wanted = world.operations + world.chance.randrange(1, 2 * between)
        while world.operations < wanted:
            if world.published:
                return
            await asyncio.sleep(0.001)
        await world.kill()
        await world.start()


class _EnoughError(Exception):
    pass


async def _prepare(world: World) -> None:
    """Let everybody be known who is to get everything."""
    while True:
        peer = await world.login("")
        try:
            for topic in ("t", "wills"):
                assert (await peer.ask(spec.REGISTER, (topic.encode(), QUEUES))).code == 0
                await peer.subscribe(topic, group="audit")
            await peer.subscribe("t", group="g")
            await (await world.login("subscriber", clean=False)).subscribe("t")
            return
        except LOST:
            continue


async def play(
    world: World, disturb: Callable[[], Awaitable[None]], patience: float, *, until_wrong: bool = False
) -> None:
    """Run the clients of a world, and what disturbs them, until everything is published and audited."""
    checker = world.checker
    tasks: list[asyncio.Future[None]] = []
    try:
        await world.start()
        try:
            await asyncio.wait_for(_prepare(world), 2 * patience)
        except asyncio.TimeoutError:
            raise AssertionError("the hub stores nothing") from None
        publishers = [asyncio.create_task(Publisher(world, n).run()) for n in range(PUBLISHERS)]
        others = [asyncio.create_task(consume(world, n)) for n in range(CONSUMERS)]
        others += [asyncio.create_task(respond(world, n)) for n in range(RESPONDERS)]
        others += [asyncio.create_task(one(world)) for one in (subscribe, listen, call)]
        busy = [asyncio.create_task(one(world)) for one in (die, retain)]
        killer = asyncio.ensure_future(disturb())
        tasks = [*publishers, *others, *busy, killer]

        async def until(true: Callable[[], bool]) -> None:
            await _until(lambda: true() or (until_wrong and bool(checker.wrong)), tasks, world, patience)
            if until_wrong and checker.wrong:
                raise _EnoughError

        # What is lost may hold up its publisher.
        await until(lambda: all(task.done() for task in publishers))
        world.published = True
        await until(lambda: all(task.done() for task in (killer, *busy)))
        await until(lambda: not checker.missing(GROUP) and not checker.missing(SESSION))
        await _cancel([*publishers, *others])
        deadline = time.monotonic() + patience
        for audited in itertools.count():
            for topic in ("t", "wills"):
                try:
                    found = await asyncio.wait_for(audit(world, topic), 2 * patience)
                except asyncio.TimeoutError:
                    raise AssertionError(f"the audit of {topic!r} does not end") from None
                for event in found:
                    world.see(*event)
            if audited and (not checker.unpublished() or time.monotonic() > deadline):
                break
        world.see("end", GROUP, SESSION, AUDIT)
        await world.end()
    except _EnoughError:
        pass
    finally:
        await _cancel(tasks)
        world.abandon()


async def _cancel(tasks: "Sequence[asyncio.Future[None]]") -> None:
    """End tasks; once may not be enough: before Python 3.12, wait_for may miss it when a frame comes just then."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)


async def _until(
    true: Callable[[], bool], tasks: "Sequence[asyncio.Future[None]]", world: World, patience: float
) -> None:
    """Wait, as long as something happens. Raises what a task raised."""
    moved, advanced = time.monotonic(), -1
    while not true() and time.monotonic() - moved < patience:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        await asyncio.sleep(0.01)
        if world.advanced != advanced:
            moved, advanced = time.monotonic(), world.advanced


def run(
    directory: Path,
    operations: int,
    seed: int,
    between: int = 400,
    command: Sequence[str] = HEADWATER,
    patience: float = PATIENCE,
    *,
    until_wrong: bool = False,
) -> World:
    """A history of about so many operations, with a kill about every ``between`` (0: none). ``command`` runs the hub;
    ``until_wrong``: it may end as soon as something is wrong."""

    async def main() -> World:
        messages = max(1, operations // _PER_MESSAGE // PUBLISHERS)
        world = World(directory, seed, messages, command)
        await play(world, lambda: _kill(world, between), patience, until_wrong=until_wrong)
        return world

    return asyncio.run(main())


def _swept(events: Iterable[Event]) -> int:
    """Up to which byte connections were cut at every one, in both directions."""
    cut = {event[1:] for event in events if event[0] == "cut"}
    return next(n for n in itertools.count() if not {(n + 1, 0), (0, n + 1)} <= cut)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--between", type=int, default=2000, help="operations between two kills, about; 0: none"
    )
    parser.add_argument("--events", type=Path, help="a file for all events, as lines of JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        world = run(Path(directory), args.operations, args.seed, args.between)
    if args.events:
        args.events.write_text("".join(json.dumps(event) + "\n" for event in world.events))
    count, again = world.checker.count, world.checker.again
    print(
        f"{world.operations} operations, {count['killed']} times killed, {time.monotonic() - began:.0f} s:\n"
        + "".join(f"  {kind} {number}\n" for kind, number in count.items())
        + f"  cut at every byte, in both directions, up to {_swept(world.events)}\n"
        + f"  came again, as they may: {dict(again)}"
    )
    print("\n".join(world.checker.wrong[:20]) or "nothing lost, doubled, reordered or invented")
    return 1 if world.checker.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
