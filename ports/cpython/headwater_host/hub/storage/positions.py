"""Positions of consumer groups in queues."""

from collections.abc import Iterable
from typing import Any

from headwater_host.hub.storage.queues import Position
from headwater_host.hub.storage.removal import Removal
from headwater_host.hub.storage.topic import Topic, Topics
from headwater_host.hub.storage.writer import CROWD, Writer


class Positions:
    """The positions of all groups. Those that changed are written with the transaction."""

    def __init__(self, topics: Topics, writer: Writer, removal: Removal):
        self._topics = topics
        self._writer = writer
        self._removal = removal
        #: The positions that changed since the last transaction: topic, queue, group.
        self._moved: dict[tuple[Topic, int, str], None] = {}

    def restore(
        self, topic: Topic, queue: int, group: str, through: int, rows: Iterable[tuple[int, int]]
    ) -> None:
        """Take in a position of the file, with the messages that have a row of their own."""
        positions = self._of(topic, group)
        positions[queue] = Position(through)
        positions[queue].restore(rows)

    def _of(self, topic: Topic, group: str) -> list[Position]:
        """Return a group's positions in a topic, added at its start if there are none. A follower may have got only
        some of them yet."""
        positions = topic.groups.get(group)
        if positions is None:
            self._topics.places += len(topic.queues)
            positions = topic.groups[group] = [Position(0) for _ in topic.queues]
        return positions

    def replay(self, kind: str, values: tuple[Any, ...]) -> None:
        """Make a change of the leader, in memory only."""
        group, number = values[:2]
        topic = self._topics.numbers[number]
        if kind == "detach":
            if topic.groups.pop(group, None) is not None:
                self._topics.places -= len(topic.queues)
            return
        position = self._of(topic, group)[values[2]]
        if kind == "position":
            position.replay(values[3])
        elif kind == "open":
            position.replay_row(*values[3:])
        else:
            position.replay_closed(values[3])

    def replay_growth(self, topic: Topic) -> None:
        """Let the groups of a topic have its new queues; the leader's changes say where they are."""
        for positions in topic.groups.values():
            positions += [Position(0) for _ in topic.queues[len(positions) :]]

    def replayed(self) -> None:
        """Have all unacknowledged messages redelivered, after the last replayed change."""
        for topic in self._topics.values():
            for positions in topic.groups.values():
                for position in positions:
                    position.replayed()
        self.mark_done()

    def mark_done(self) -> None:
        """Have all messages removed that every group has acknowledged."""
        for topic in self._topics.values():
            for queue in range(len(topic.queues)) if topic.groups else ():
                self._removal.mark_done(topic, queue)

    def attach(self, group: str, name: str, *, from_now: bool = False) -> bool:
        """Let a group consume a topic, from its oldest message or from now; return whether that is new. Raises
        RefusedError."""
        topic = self._topics.named(name)
        if group in topic.groups:
            return False
        self._topics.check_room(0, len(topic.queues))
        self._topics.places += len(topic.queues)
        floor = self._writer.seq if from_now else 0
        topic.groups[group] = [Position(floor) for _ in topic.queues]
        for queue in range(len(topic.queues)):
            self._moved[topic, queue, group] = None
        self._writer.wake()
        return True

    def detach(self, group: str, name: str) -> bool:
        """Forget where a group is in a topic; return whether it was anywhere."""
        topic = self._topics.get(name)
        if topic is None or topic.groups.pop(group, None) is None:
            return False
        self._topics.places -= len(topic.queues)
        self._writer.change("detach", group, topic.number)
        if topic.groups:
            for queue in range(len(topic.queues)):
                self._removal.mark_done(topic, queue)
            self._removal.sweep()
        return True

    def grow(self, topic: Topic) -> None:
        """Let the groups of a topic consume its new queues."""
        for group, positions in topic.groups.items():
            while len(positions) < len(topic.queues):
                self._moved[topic, len(positions), group] = None
                positions.append(Position(0))

    def find(self, group: str, name: str, queue: int) -> Position | None:
        """Return a group's position in a queue, if it has one."""
        topic = self._topics.get(name)
        positions = topic.groups.get(group) if topic else None
        return positions[queue] if positions and 0 <= queue < len(positions) else None

    def ack(self, group: str, name: str, queue: int, seq: int) -> bool:
        """Acknowledge a message; return whether it was unacknowledged. When every group is done with it, it is
        removed."""
        position = self.find(group, name, queue)
        if position is None or not position.ack(seq):
            return False
        self._moved[self._topics[name], queue, group] = None
        self._writer.wake()
        return True

    def give_back(self, group: str, name: str, queue: int, seq: int) -> int:
        """Redeliver a message. Return its number of failed deliveries, 0 if it was not delivered."""
        position = self.find(group, name, queue)
        tries = position.give_back(seq) if position is not None else 0
        if tries:
            self._moved[self._topics[name], queue, group] = None
            self._writer.wake()
        return tries

    def rewind(self, group: str, name: str, queue: int) -> None:
        """Have everything that is unacknowledged redelivered to another consumer, without counting a try."""
        position = self.find(group, name, queue)
        if position is not None:
            position.rewind()

    @property
    def is_crowded(self) -> bool:
        """True if attaching must wait for the next transaction because too many positions have to be written."""
        return len(self._moved) >= CROWD

    def settle(self) -> None:
        """Complete the transaction: write the positions that changed, and mark what every group is done with."""
        moved, self._moved = self._moved, {}
        queues: dict[tuple[Topic, int], None] = {}
        for topic, queue, group in moved:
            positions = topic.groups.get(group)
            if positions is not None and self._topics.get(topic.name) is topic:
                self._write(group, topic.number, queue, positions[queue])
                queues[topic, queue] = None
        for topic, queue in queues:
            self._removal.mark_done(topic, queue)

    def _write(self, group: str, topic: int, queue: int, position: Position) -> None:
        moved, opened, closed = position.settle()
        change = self._writer.change
        if moved:
            change("position", group, topic, queue, position.through)
        for seq, tries in opened:
            change("open", group, topic, queue, seq, tries)
        if closed:
            change("close", group, topic, queue, closed)
