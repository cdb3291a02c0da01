"""Assigns the queues of a consumer group to its members (FMQ, section 4): each queue to one, evenly, with few moves.

These are pure functions. A queue is anything hashable, such as ``(topic, number)``, and so is a member. A member may
have subscribed to some of the topics only.
"""

from collections import deque
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

#: Queues that are looked at in a step.
_PACE = 16

Q = TypeVar("Q", bound=Hashable)
M = TypeVar("M", bound=Hashable)


def assigning(queues: Mapping[Q, Sequence[M]], now: Mapping[Q, M]) -> Generator[None, None, dict[Q, M]]:
    """Find, in short steps, the consumer of each queue that has one. ``queues`` gives the members that may consume it,
    ``now`` its present consumer; neither mapping may change meanwhile.

    A queue stays with its consumer unless the consumer may not have it any more, or a move makes the shares more even.
    In the result, no chain of moves lowers the share of a member that has at least two queues more than another. If all
    members may have all queues, the result takes the fewest moves. It depends only on the order of both mappings.
    """
    held: dict[M, dict[Q, None]] = {}
    given: dict[Q, M] = {}
    for n, members in enumerate(queues.values()):
        for member in members:
            held.setdefault(member, {})
        if not n % _PACE:
            yield
    for n, (queue, members) in enumerate(queues.items()):
        if queue in now and now[queue] in members:
            _give(queue, now[queue], given, held)
        if not n % _PACE:
            yield
    for n, (queue, members) in enumerate(queues.items()):
        if queue not in given and members:
            _give(queue, min(members, key=lambda member: len(held[member])), given, held)
        if not n % _PACE:
            yield
    yield from _even(queues, given, held)
    return given


def _give(queue: Q, member: M, given: dict[Q, M], held: dict[M, dict[Q, None]]) -> None:
    before = given.get(queue)
    if before is not None:
        del held[before][queue]
    given[queue] = member
    held[member][queue] = None


def _even(queues: Mapping[Q, Sequence[M]], given: dict[Q, M], held: dict[M, dict[Q, None]]) -> Iterator[None]:
    """Move queues along chains from a member to one that has at least two fewer, until there are none."""
    settled: set[M] = set()
    shares = [len(mine) for mine in held.values()]
    if max(shares, default=0) - min(shares, default=0) < 2:
        return
    while waiting := [member for member in held if member not in settled]:
        busiest = max(waiting, key=lambda member: len(held[member]))
        for queue, member in _chain(busiest, queues, held, settled):
            _give(queue, member, given, held)
        yield


def _chain(
    start: M, queues: Mapping[Q, Sequence[M]], held: dict[M, dict[Q, None]], settled: set[M]
) -> list[tuple[Q, M]]:
    """Return the shortest chain of moves that takes a queue from ``start``, the busiest member that is not settled.

    Without such a chain, all members that can be reached from there have as many queues or one fewer, and are settled.
    """
    least = len(held[start]) - 2
    came: dict[M, tuple[Q, M]] = {}
    seen = {start}
    waiting = deque([start])
    while waiting:
        member = waiting.popleft()
        looked: set[int] = set()
        for queue in held[member]:
            # Queues of one topic share the list of their possible consumers: look at it once.
            if id(queues[queue]) in looked:
                continue
            looked.add(id(queues[queue]))
            fresh = [other for other in queues[queue] if other not in seen and other not in settled]
            for other in fresh:
                seen.add(other)
                came[other] = queue, member
            idlest = min(fresh, key=lambda other: len(held[other]), default=None)
            if idlest is not None and len(held[idlest]) <= least:
                return _walk(idlest, start, came)
            waiting += fresh
    settled |= seen
    return []


def _walk(end: M, start: M, came: dict[M, tuple[Q, M]]) -> list[tuple[Q, M]]:
    chain = []
    while end != start:
        queue, member = came[end]
        chain.append((queue, end))
        end = member
    return chain
