"""Consumer groups: queues of members, deliveries, redeliveries (docs/protocols/fmq.md, section 4).

A queue of a topic is a ``Lane`` of each group that consumes it. A lane belongs to one member, which receives its
messages in order. When members join or leave, the lanes are redistributed. A lane moves only after all its messages are
acknowledged, and gets no new ones until then, so that two members never work on the same lane. If its owner
acknowledges nothing for a while, the owner gets more messages, and the lane moves after those that were unacknowledged
then.
"""

import abc
import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from headwater_host.hub.assignment import assigning
from headwater_host.hub.contracts import Delivering
from headwater_host.hub.errors import RefusedError, StorageError
from headwater_host.hub.storage import Delivery, Message
from headwater_host.hub.topics import Subscriptions
from headwater_host.hub.turns import Steps, Turns

#: Initial seconds that a moving lane waits for an acknowledgement before its owner gets more messages.
PATIENCE = 1.0
#: Messages delivered in one turn of the event loop, and at once from one lane.
_TURN = 256
_AT_ONCE = 32
#: Seconds until messages are taken again from a database that does not answer.
AGAIN = 0.1
#: Topics or lanes processed in one step.
_PACE = 16

_logger = logging.getLogger("headwater.hub")

Key = tuple[str, int]


class Opening(NamedTuple):
    """An unacknowledged message: its id, and its deadline by the loop's clock (0: none)."""

    ident: bytes
    deadline: float


class Lane:
    """A queue of a topic, as one group consumes it. ``heir`` is the member that gets it once nothing is ``open``."""

    __slots__ = ("group", "heir", "open", "owner", "patience", "queue", "stays", "stuck", "topic", "watched")

    def __init__(self, group: "Group", topic: str, queue: int):
        self.group = group
        self.topic = topic
        self.queue = queue
        self.owner: Member | None = None
        self.heir: Member | None = None
        #: True if its deadlines are checked.
        self.watched = False
        #: Unacknowledged messages by sequence number, in the order of delivery.
        self.open: OrderedDict[int, Opening] = OrderedDict()
        #: True if the owner is still allowed to have it.
        self.stays = True
        #: Unacknowledged messages that delay the move; until they are acknowledged, the owner gets more.
        self.stuck: set[int] = set()
        #: Seconds without an acknowledgement before that.
        self.patience = PATIENCE


class Member(abc.ABC):
    """A member of a group; subclasses send the messages."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, None] = {}
        #: Lanes that may have messages.
        self.ready: OrderedDict[Lane, None] = OrderedDict()
        self.busy = False

    @abc.abstractmethod
    def patterns(self) -> list[str]:
        """Return the filters of its topics."""

    def may_have(self, topic: str) -> bool:
        """Return whether the member may have lanes of a topic that its filters match."""
        return True

    def may_take(self, topic: str) -> bool:
        """Return whether messages of one of its lanes may be delivered to it now. If not, they wait for it."""
        return True

    @abc.abstractmethod
    def room(self) -> int:
        """Return the number of messages that it can take now."""

    @abc.abstractmethod
    def hand(self, lane: Lane, delivery: Delivery) -> bool:
        """Send a message. Return whether it needs an acknowledgement; otherwise it is completed."""

    def closed(self, lane: Lane, seq: int, ident: bytes) -> None:  # noqa: B027  # most keep nothing of it
        """Record that a message is no longer unacknowledged."""


class _Pace:
    """Combines several small steps into one."""

    def __init__(self) -> None:
        self._count = 0

    def step(self) -> Sequence[None]:
        """Return the values to yield: usually none."""
        self._count += 1
        return () if self._count % _PACE else (None,)


class Group:
    """The members of one group, and their lanes."""

    def __init__(self, groups: "Groups", name: str):
        self.name = name
        self._groups = groups
        self._store = groups.store
        self.members: dict[Member, None] = {}
        self.lanes: dict[Key, Lane] = {}
        self._given: dict[Key, Member] = {}
        #: The filters of all members.
        self.patterns: set[str] = set()
        #: True if there was no room for one of its topics, which is logged once.
        self._crowded = False
        #: True while its lanes are being distributed.
        self.is_spreading = False

    def join(self, member: Member) -> None:
        """Add a member."""
        self.members[member] = None
        self._groups.spread(self)

    def leave(self, member: Member, *, failed: bool) -> None:
        """Remove a member; its lanes go to the others. ``failed``: its unacknowledged messages count a delivery."""
        if member not in self.members:
            return
        del self.members[member]
        for lane in list(member.lanes):
            self.give_up(lane, failed=failed)
            self._take_away(lane)
            lane.owner = None
        self._groups.spread(self)

    def give_up(self, lane: Lane, *, failed: bool) -> None:
        """Redeliver all unacknowledged messages of a lane."""
        opened = list(lane.open)
        for seq in opened:
            self._close(lane, seq)
        if failed and opened:
            self._store.give_back(self.name, lane.topic, lane.queue, opened, time_ns=self._store.age.now())
        elif opened:
            self._store.rewind(self.name, lane.topic, lane.queue)

    def spread(self) -> Steps:
        """Assign each lane to a member. If members or topics change meanwhile, the lanes are distributed again."""
        members = list(self.members)
        self._groups.index(self, {pattern for member in members for pattern in member.patterns()})
        matched: dict[str, list[str]] = {}
        able: dict[str, list[Member]] = {}
        pace = _Pace()
        for member in members:
            for pattern in member.patterns():
                if pattern not in matched:
                    matched[pattern] = []
                    for topic in self._store.names.match(pattern):
                        matched[pattern].append(topic)
                        yield from pace.step()
                for topic in matched[pattern]:
                    found = able.setdefault(topic, [])
                    if (not found or found[-1] is not member) and member.may_have(topic):
                        found.append(member)
                    yield from pace.step()
        queues: dict[Key, list[Member]] = {}
        for topic, found in able.items():
            if found and topic in self._store.topics and self._attach(topic):
                for n in range(len(self._store.topics[topic].queues)):
                    queues[topic, n] = found
            yield from pace.step()
            if self._store.is_crowded:
                yield self._store.next_turn
        given = yield from assigning(queues, dict(self._given))
        self._given = given
        for key in dict.fromkeys([*self.lanes, *given]):
            self._give(key, given.get(key), able.get(key[0], ()))
            yield from pace.step()

    def _give(self, key: Key, heir: "Member | None", able: Sequence["Member"]) -> None:
        """Move a lane to its heir. ``able`` are the members that may have it."""
        topic = self._store.topics.get(key[0])
        if topic is None or key[1] >= len(topic.queues) or (heir is not None and heir not in self.members):
            return
        lane = self.lanes.get(key)
        if lane is None:
            if heir is None:
                return
            lane = self.lanes[key] = Lane(self, *key)
        lane.heir = heir
        # Usually the owner is the heir, which saves a search of all members.
        lane.stays = lane.owner is not None and (lane.owner is heir or lane.owner in able)
        if not lane.stays:
            lane.stuck.clear()
        self._settle(lane)

    def take_in(self, topics: Iterable[str]) -> Steps:
        """Add topics that are new or have grown. The group has one member, so nothing else moves."""
        for topic in topics:
            member = next(iter(self.members), None)
            if member is None:
                return
            if topic not in self._store.topics or not member.may_have(topic) or not self._attach(topic):
                continue
            for n in range(len(self._store.topics[topic].queues)):
                if (topic, n) not in self.lanes:
                    lane = self.lanes[topic, n] = Lane(self, topic, n)
                    lane.heir = self._given[topic, n] = member
                    self._settle(lane)
            yield None

    def _attach(self, topic: str) -> bool:
        """Let the group consume a topic. Return whether there is room; if not, its other topics continue."""
        try:
            self._store.attach(self.name, topic)
        except RefusedError as error:
            if not self._crowded:
                _logger.warning("%r is not consumed by the group %r: %s", topic, self.name, error)
            self._crowded = True
            return False
        return True

    def _settle(self, lane: Lane) -> None:
        """Give a lane to its heir, if nothing on it is unacknowledged."""
        heir, owner = lane.heir, lane.owner
        if owner is heir:
            # The lane may have paused for a move and missed messages.
            self._rest(lane)
            self.wake(lane)
        elif owner is not None and not lane.stuck:
            owner.ready.pop(lane, None)
            if lane.open and lane.stays:
                self._groups.drain(lane)
        if lane.open:
            return
        if owner is not heir:
            self._take_away(lane)
            self._rest(lane)
            lane.owner = heir
            if heir is not None:
                heir.lanes[lane] = None
                self.wake(lane)
        if heir is None:
            self.lanes.pop((lane.topic, lane.queue), None)

    def _rest(self, lane: Lane) -> None:
        """Record that a lane is not about to move."""
        lane.stuck.clear()
        lane.patience = PATIENCE
        self._groups.draining.pop(lane, None)

    def stall(self, lane: Lane) -> None:
        """Let the owner of a moving lane continue until all messages that are unacknowledged now are acknowledged: it
        has acknowledged nothing for too long. The wait doubles each time, so that the lane moves in the end."""
        lane.stuck.update(lane.open)
        lane.patience *= 2
        self.wake(lane)

    def _take_away(self, lane: Lane) -> None:
        if lane.owner is not None:
            lane.owner.lanes.pop(lane, None)
            lane.owner.ready.pop(lane, None)

    def wake(self, lane: Lane) -> None:
        """Record that a lane may have messages."""
        owner = lane.owner
        if owner is not None and (lane.heir is owner or lane.stuck):
            owner.ready[lane] = None
            self._groups.wake(owner)

    def _close(self, lane: Lane, seq: int) -> None:
        opening = lane.open.pop(seq)
        lane.stuck.discard(seq)
        if lane.owner is not None:
            lane.owner.closed(lane, seq, opening.ident)

    def done(self, lane: Lane, seq: int) -> None:
        """Acknowledge a message."""
        if seq in lane.open:
            owner = lane.owner
            self._close(lane, seq)
            self._store.ack(self.name, lane.topic, lane.queue, seq)
            if lane.heir is not owner:
                self._groups.draining.pop(lane, None)
                self._settle(lane)
            if owner is not None:
                self._groups.wake(owner)

    def back(self, lane: Lane, seq: int) -> None:
        """Redeliver a message, or move it to the dead-letter topic."""
        if seq in lane.open:
            self._close(lane, seq)
            self._store.give_back(self.name, lane.topic, lane.queue, [seq], time_ns=self._store.age.now())
            self._settle(lane)
            self.wake(lane)

    def topic_gone(self, topic: str, queues: int) -> None:
        """Drop the lanes of a topic that is about to be deleted."""
        for key in [(topic, n) for n in range(queues)]:
            lane = self.lanes.pop(key, None)
            if lane is None:
                continue
            for seq in list(lane.open):
                self._close(lane, seq)
            self._take_away(lane)
            self._rest(lane)
            self._given.pop(key, None)


class Groups:
    """All groups; delivers messages to their members in each turn of the event loop."""

    def __init__(self, store: Delivering, loop: asyncio.AbstractEventLoop, turns: Turns):
        self.store = store
        self._loop = loop
        self._turns = turns
        self.by_name: dict[str, Group] = {}
        #: Groups to redistribute: because of these topics only, or for another reason (None).
        self._unsettled: dict[Group, dict[str, None] | None] = {}
        #: True if ``_spread`` is called soon.
        self._is_soon = False
        #: Groups by the filters of their members.
        self._index: Subscriptions[Group] = Subscriptions()
        #: Moving lanes, and the time for which they wait for an acknowledgement.
        self.draining: dict[Lane, float] = {}
        #: Lanes with unacknowledged messages, by their next deadline.
        self._due: list[tuple[float, int, Lane]] = []
        self._pushed = 0
        #: Members that may get messages, the next one first.
        self._busy: deque[Member] = deque()
        self._scheduled = False

    def group(self, name: str) -> Group:
        """Return the group of this name."""
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name[name] = Group(self, name)
        return found

    def attach(self, name: str, pattern: str) -> Steps:
        """Let a group consume all topics of a filter, from the oldest messages on, or raise RefusedError."""
        store = self.store
        fresh: list[str] = []
        try:
            for topic in store.names.match(pattern):
                if topic in store.topics and store.attach(name, topic):
                    fresh.append(topic)
                yield store.next_turn if store.is_crowded else None
        except RefusedError:
            group = self.by_name.get(name)
            for topic in fresh if group is None or not group.members else ():
                store.detach(name, topic)
                yield None
            raise

    def spread(self, group: Group, topic: str | None = None) -> None:
        """Spread a group's lanes from the end of this turn on: once, however many members come and go. ``topic`` is the
        reason: it is new or has grown."""
        if not self._is_soon:
            self._is_soon = True
            self._loop.call_soon(self._spread)
        topics = self._unsettled.setdefault(group, {})
        if topic is None:
            self._unsettled[group] = None
        elif topics is not None:
            topics[topic] = None

    def _spread(self) -> None:
        self._is_soon = False
        for group in [group for group in self._unsettled if not group.is_spreading]:
            topics = self._unsettled.pop(group)
            alone = topics is not None and len(group.members) == 1
            group.is_spreading = True
            steps = group.take_in(topics) if alone and topics is not None else group.spread()
            self._turns.begin(steps, partial(self._settled, group))

    def _settled(self, group: Group) -> None:
        group.is_spreading = False
        if group in self._unsettled:
            self.spread(group, next(iter(self._unsettled[group] or ()), None))
        elif not group.members and not group.lanes:
            self.by_name.pop(group.name, None)

    def index(self, group: Group, patterns: set[str]) -> None:
        """Replace the filters of a group's members."""
        for pattern in group.patterns - patterns:
            self._index.remove(pattern, group)
        for pattern in patterns - group.patterns:
            self._index.add(pattern, group, group)
        group.patterns = patterns

    def interested(self, topic: str) -> list[Group]:
        """Return the groups that have members for a topic, or may have at the end of this turn."""
        return list(dict.fromkeys([*self._index.match(topic), *self._unsettled]))

    def wake(self, member: Member) -> None:
        """Deliver messages to a member at the end of this turn: it may have new ones, or room again."""
        if not member.busy:
            member.busy = True
            self._busy.append(member)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        """Deliver messages to each member in turn; the rest in the next turn."""
        left = _TURN
        try:
            while self._busy and left > 0:
                member = self._busy.popleft()
                member.busy = False
                left = self._pump(member, left) - 1
                if member.ready and left <= 0:
                    self.wake(member)
        finally:
            self._scheduled = bool(self._busy)
            if self._scheduled:
                self._loop.call_soon(self._hand_out)

    def _pump(self, member: Member, left: int) -> int:
        """Deliver at most ``left`` messages to a member that has room. Return the number left for others."""
        store = self.store
        while member.ready and (room := min(member.room(), left)) > 0:
            lane = next(iter(member.ready))
            if not member.may_take(lane.topic):
                del member.ready[lane]
                continue
            member.ready.move_to_end(lane)
            group = lane.group
            try:
                found = store.take(group.name, lane.topic, lane.queue, min(room, _AT_ONCE))
            except StorageError:
                # The database does not answer. The lane stays ready.
                self._loop.call_later(AGAIN, self.wake, member)
                return left - 1
            if not found:
                del member.ready[lane]
                left -= 1
            for delivery in found:
                left -= 1
                seq = delivery.message.seq
                if not member.hand(lane, delivery):
                    store.ack(group.name, lane.topic, lane.queue, seq)
        return left

    def stored(self, messages: list[Message]) -> None:
        """Wake the members with messages that are now on disk."""
        topics = self.store.topics
        for topic, queue in {(message.topic, message.queue) for message in messages}:
            found = topics.get(topic)
            for name in found.groups if found is not None else ():
                group = self.by_name.get(name)
                lane = group.lanes.get((topic, queue)) if group is not None else None
                if lane is not None:
                    lane.group.wake(lane)

    def topic_made(self, topic: str) -> None:
        """Redistribute the groups of a topic that is new or has grown."""
        for group in dict.fromkeys(self._index.match(topic)):
            self.spread(group, topic)

    def topic_gone(self, topic: str) -> None:
        """Drop the lanes of a topic that is about to be deleted, in all groups."""
        found = self.store.topics.get(topic)
        for name in found.groups if found is not None else ():
            group = self.by_name.get(name)
            if found is not None and group is not None:
                group.topic_gone(topic, len(found.queues))

    # -- time --------------------------------------------------------------------------------------------------------

    def watch(self, lane: Lane, deadline: float) -> None:
        """Check a lane at this deadline, unless it is checked already."""
        if not lane.watched:
            lane.watched = True
            self._pushed += 1
            heappush(self._due, (deadline, self._pushed, lane))

    def drain(self, lane: Lane) -> None:
        """Pause a lane until it has moved, or until its owner acknowledges nothing for too long."""
        self.draining.setdefault(lane, self._loop.time() + lane.patience)

    def overdue(self, now: float) -> None:
        """Redeliver messages that have reached their deadline."""
        for lane in [lane for lane, until in self.draining.items() if until <= now]:
            del self.draining[lane]
            lane.group.stall(lane)
        while self._due and self._due[0][0] <= now:
            _, _, lane = heappop(self._due)
            lane.watched = False
            while lane.open:
                seq, opening = next(iter(lane.open.items()))
                if opening.deadline > now:
                    self.watch(lane, opening.deadline)
                if not 0 < opening.deadline <= now:
                    break
                lane.group.back(lane, seq)
