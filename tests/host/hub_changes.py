"""Every change that a hub's storage knows, at random."""

import contextlib
import random
from collections.abc import Callable

from headwater_host.hub.errors import RefusedError
from headwater_host.hub.storage import Store, Subscription
from headwater_host.hub.storage.sessions import Side
from tests.host.hub_storage import ident

SECOND = 1_000_000_000
TOPICS = ("a", "b/c", "d")
GROUPS = ("g", "h")
SIDES: tuple[Side, ...] = ("received", "released", "retained")
CLIENTS = ("x", "y", "z")


class Changes:
    """Makes changes of a leader's storage."""

    def __init__(self, store: Store, chance: random.Random, payload: int = 20):
        self.store = store
        self.chance = chance
        self.payload = payload
        self.now = store.age.now()
        self.made = 0
        self._taken: list[tuple[str, str, int, int]] = []
        often: dict[Callable[[], object], int] = {
            self.publish: 20,
            self.retain: 4,
            self.ack: 8,
            self.give_back: 4,
            self.register: 3,
            self.unregister: 1,
            self.attach: 3,
            self.detach: 1,
            self.login: 3,
            self.forget: 1,
            self.session: 3,
            self.end: 1,
            self.subscribe: 2,
            self.unsubscribe: 1,
            self.hold: 3,
            self.release: 2,
            self.will: 2,
            self.trim: 1,
        }
        self._steps = [step for step, times in often.items() for _ in range(times)]
        for name in TOPICS:
            store.register(name, 2)

    def reopened(self, store: Store) -> None:
        """Continue with the storage that was closed and opened again."""
        self.store = store
        self._taken.clear()

    def step(self) -> None:
        """Make one change, or none when it is refused."""
        self.now += self.chance.randrange(SECOND // 10)
        with contextlib.suppress(RefusedError):
            self.chance.choice(self._steps)()

    def take(self) -> None:
        """Deliver some messages."""
        for name, topic in self.store.topics.items():
            for group in topic.groups:
                for queue in range(len(topic.queues)):
                    found = self.store.take(group, name, queue, self.chance.randrange(4))
                    self._taken += ((group, name, queue, one.message.seq) for one in found)

    # -- changes -----------------------------------------------------------------------------------------------------

    def _topic(self) -> str:
        return self.chance.choice(TOPICS)

    def _client(self) -> str:
        return self.chance.choice(CLIENTS)

    def publish(self, retain: bool = False) -> None:
        self.made += 1
        again = self.chance.random() < 0.1
        number = self.chance.randrange(self.made) if again else self.made
        size = 0 if retain and self.chance.random() < 0.4 else self.chance.randrange(self.payload)
        self.store.publish(
            self._topic(),
            ident(number),
            self.chance.randrange(4),
            self.chance.randbytes(size),
            tags=("tag", "é")[: self.chance.randrange(3)],
            qos=self.chance.randrange(3),
            retain=retain,
            time_ns=self.now,
        )

    def retain(self) -> None:
        self.publish(retain=True)

    def _one_taken(self) -> tuple[str, str, int, int] | None:
        if not self._taken:
            return None
        return self._taken.pop(self.chance.randrange(len(self._taken)))

    def ack(self) -> None:
        for _ in range(self.chance.randrange(4)):
            one = self._one_taken()
            if one is not None:
                self.store.ack(*one)

    def give_back(self) -> None:
        one = self._one_taken()
        if one is not None:
            group, topic, queue, seq = one
            self.store.give_back(group, topic, queue, [seq], time_ns=self.now)

    def register(self) -> None:
        self.store.register(self._topic(), self.chance.randrange(1, 5))

    def unregister(self) -> None:
        name = self.chance.choice((*TOPICS, "$dead/a", "$dead/d"))
        self.store.unregister(name)

    def attach(self) -> None:
        self.store.attach(self.chance.choice(GROUPS), self._topic(), from_now=self.chance.random() < 0.5)

    def detach(self) -> None:
        self.store.detach(self.chance.choice(GROUPS), self._topic())

    def login(self) -> None:
        self.store.sessions.process(self.chance.choice(("", *CLIENTS)))

    def forget(self) -> None:
        self.store.sessions.forget(self._client())

    def session(self) -> None:
        self.store.sessions.save(self._client(), {"user": self.chance.choice((None, "ann")), "n": self.made})

    def end(self) -> None:
        self.store.sessions.end(self._client())

    def _with_session(self) -> str | None:
        found = [session.client for session in self.store.sessions.all()]
        return self.chance.choice(found) if found else None

    def subscribe(self) -> None:
        client = self._with_session()
        if client is not None:
            serial = self.chance.randrange(3)
            self.store.sessions.subscribe(client, Subscription(serial, "a/+", ("t",), "celsius > 1", "g"))

    def unsubscribe(self) -> None:
        self.store.sessions.unsubscribe(self._client(), self.chance.randrange(3))

    def hold(self) -> None:
        client = self._with_session()
        if client is not None:
            side = self.chance.choice(SIDES)
            self.store.sessions.hold(client, side, ident(self.chance.randrange(9)))

    def release(self) -> None:
        side = self.chance.choice(SIDES)
        self.store.sessions.release(self._client(), side, ident(self.chance.randrange(9)))

    def will(self) -> None:
        process = self.chance.randrange(3)
        if self.chance.random() < 0.6:
            self.store.sessions.keep_will(process, {"topic": "a", "payload": "eA=="})
        else:
            self.store.sessions.forget_will(process)

    def trim(self) -> None:
        self.store.trim(self.now)
