"""What the clients of a hub did and saw, written down as events, and what is wrong with it.

Events are tuples; what they are made of, in this order:

==============================  ================================================================================
sent, publisher, n              a publisher sends its message ``n``, for the first time or again
acked, publisher, n             the hub has acknowledged it (ACK, PUBREC)
got, who, publisher, n, qos     somebody gets it whom the hub keeps something for: a group, a session, or the audit
done, who, publisher, n         their acknowledgement of it is on the disk
pushed, connection, publisher,  it comes to a broadcast subscription of a session that ends with its connection
n
will, k, state                  a client has asked for will ``k``; it is kept; the client is lost; it has left
willed, k                       the audit gets will ``k``
retained, least, most, seen     a new subscription sees what was retained (None: nothing), while states ``least`` to
                                ``most`` may hold: see ``retained_state``
called, k                       a client makes the remote procedure call ``k``
made, k                         a responder gets it
answered, k, of                 the caller gets the result of call ``of``
cut, sent, received             a publisher's connection begins, to be cut when so many bytes were sent, or received
killed                          the hub was killed
fault, name                     a fault of several hubs begins
end, who, ...                   all that these get has come
==============================  ================================================================================

The audit is a group that nobody consumes from before the end: it gets all that was stored, as it was stored.

A history is wrong when something is

- lost: acknowledged to its publisher, and somebody never gets it; the will of a lost client that is never published;
- doubled: stored twice (the audit gets it again); or delivered again though its acknowledgement was on the disk; at
  QoS 2, or on one connection, delivered again at all; a will that is published twice;
- undone: delivered to somebody, but not stored (the audit never gets it);
- reordered: got for the first time behind a later message of the same publisher;
- invented: never sent; a will whose client has left; the result of another call, or of one that no responder got.

A call that is made twice, or has two results, is doubled. Its loss is as the protocol says.

That a message comes again to a group or a session whose acknowledgement was not on the disk is as the protocol says.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

Event = tuple[Any, ...]
#: By what is kept for them, who is to get every message.
GROUP, SESSION, AUDIT = "group", "session", "audit"
#: Every so many states what is retained is cleared.
CLEARED = 5
_WILLS = ("asked", "kept", "leaving", "lost", "left")


def retained_state(n: int) -> int | None:
    """What is retained in state ``n``, the first of which is 0; before that, and every now and then, nothing."""
    return None if n < 0 or n % CLEARED == CLEARED - 1 else n


class Checker:
    """Told each event as it happens. ``wrong``: what is wrong so far."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.count: Counter[str] = Counter()
        #: How often somebody got something again, as they may.
        self.again: Counter[str] = Counter()
        self._sent: set[tuple[int, int]] = set()
        self._acked: set[tuple[int, int]] = set()
        self._missing: dict[str, set[tuple[int, int]]] = {GROUP: set(), SESSION: set(), AUDIT: set()}
        self._got: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self._done: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self._last: dict[tuple[str, int], int] = {}
        self._pushed: dict[tuple[int, int], int] = {}
        self._wills: dict[int, str] = {}
        self._willed: Counter[int] = Counter()
        #: Connections that did not get a message, though they got what follows. It may never have been stored, if its
        #: publisher has given it up.
        self._skipped: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._seen: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self._calls: dict[str, set[int]] = defaultdict(set)

    def see(self, event: Event) -> None:
        """Another event."""
        self.count[event[0]] += 1
        getattr(self, "_on_" + event[0])(*event[1:])

    def missing(self, who: str) -> set[tuple[int, int]]:
        """What was acknowledged to its publisher and has not come yet."""
        return self._missing[who]

    def unpublished(self) -> set[int]:
        """Wills of lost clients that have not come yet."""
        return {k for k, state in self._wills.items() if state == "lost" and not self._willed[k]}

    # -- events ------------------------------------------------------------------------------------------------------

    def _on_sent(self, publisher: int, n: int) -> None:
        self._sent.add((publisher, n))

    def _on_acked(self, publisher: int, n: int) -> None:
        self._acked.add((publisher, n))
        for who, missing in self._missing.items():
            if (publisher, n) not in self._got[who]:
                missing.add((publisher, n))
        self._lost_push((publisher, n))

    def _on_got(self, who: str, publisher: int, n: int, qos: int) -> None:
        message = publisher, n
        if message not in self._sent:
            self.wrong.append(f"invented: {who} gets {message}")
        if message in self._got[who]:
            self._got_again(who, message, qos)
            return
        self._got[who].add(message)
        self._missing[who].discard(message)
        last = self._last.get((who, publisher), -1)
        if n < last:
            self.wrong.append(f"reordered: {who} gets {message} for the first time behind {last}")
        for skipped in range(last + 1, n):
            # It would be reordered if it came later.
            if (publisher, skipped) in self._acked:
                self.wrong.append(f"lost: {who} gets {message}, but not {skipped}, which was acknowledged")
        self._last[who, publisher] = max(n, last)

    def _got_again(self, who: str, message: tuple[int, int], qos: int) -> None:
        self.again[who] += 1
        if who == AUDIT:
            self.wrong.append(f"doubled: {message} is stored twice")
        elif message in self._done[who]:
            self.wrong.append(f"doubled: {who} has acknowledged {message}, and gets it again")
        elif who == SESSION and qos == 2:
            self.wrong.append(f"doubled: {who} gets {message} again, at QoS 2")

    def _on_done(self, who: str, publisher: int, n: int) -> None:
        self._done[who].add((publisher, n))

    def _on_pushed(self, connection: int, publisher: int, n: int) -> None:
        self._seen["a listener"].add((publisher, n))
        last = self._pushed.get((connection, publisher))
        if last is not None and n <= last:
            self.wrong.append(f"doubled: connection {connection} gets {n} of {publisher} behind {last}")
        for skipped in range(n if last is None else last + 1, n):
            self._skipped[publisher, skipped].append(connection)
            if (publisher, skipped) in self._acked:
                self._lost_push((publisher, skipped))
        self._pushed[connection, publisher] = n

    def _lost_push(self, message: tuple[int, int]) -> None:
        for connection in self._skipped.pop(message, ()):
            self.wrong.append(f"lost: connection {connection} gets what follows {message}, but not that")

    def _on_will(self, k: int, state: str) -> None:
        assert state in _WILLS
        self._wills[k] = state
        self._check_will(k)

    def _on_willed(self, k: int) -> None:
        self._willed[k] += 1
        self._check_will(k)

    def _check_will(self, k: int) -> None:
        if self._willed[k] > 1:
            self.wrong.append(f"doubled: will {k} is published again")
        if self._willed[k] and self._wills.get(k, "left") == "left":
            self.wrong.append(f"invented: will {k} is published, but its client has left")

    def _on_retained(self, least: int, most: int, seen: int | None) -> None:
        if seen not in {retained_state(n) for n in range(least, most + 1)}:
            self.wrong.append(f"lost: {seen} is retained, and not what {least} to {most} say")

    def _on_called(self, k: int) -> None:
        self._calls["called"].add(k)

    def _on_made(self, k: int) -> None:
        self._step(k, "made", "called")

    def _on_answered(self, k: int, of: int) -> None:
        if of != k:
            self.wrong.append(f"invented: call {k} has the result of {of}")
        self._step(k, "answered", "made")

    def _step(self, k: int, step: str, before: str) -> None:
        if k not in self._calls[before]:
            self.wrong.append(f"invented: call {k} is {step}, and was not {before}")
        if k in self._calls[step]:
            self.wrong.append(f"doubled: call {k} is {step} again")
        self._calls[step].add(k)

    def _on_cut(self, sent: int, received: int) -> None:
        pass

    def _on_killed(self) -> None:
        pass

    def _on_fault(self, name: str) -> None:
        self.count[f"fault: {name}"] += 1

    def _on_end(self, *those: str) -> None:
        for who in those:
            self.wrong += [f"lost: {who} never gets {message}" for message in sorted(self.missing(who))]
        if AUDIT in those:
            self.wrong += [f"lost: will {k} is never published" for k in sorted(self.unpublished())]
            stored = self._got[AUDIT]
            for message in sorted(stored & self._skipped.keys()):
                self._lost_push(message)
            for who, messages in [*self._got.items(), *self._seen.items()]:
                undone = sorted(messages - stored)
                self.wrong += [f"undone: {who} got {message}, which is not stored" for message in undone]


def check(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history."""
    checker = Checker()
    for event in events:
        checker.see(event)
    return checker.wrong
