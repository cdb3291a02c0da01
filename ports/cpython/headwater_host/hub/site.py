"""A hub of [replication]: it leads or follows, and a promotion changes which (docs/hub-cluster.md)."""

import asyncio
import contextlib
import itertools
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from headwater_host.fmq.address import Address
from headwater_host.hub.broker import Broker
from headwater_host.hub.config import HubConfig, ReplicationConfig
from headwater_host.hub.errors import StorageError
from headwater_host.hub.leadership import Leadership
from headwater_host.hub.observer import Observer
from headwater_host.hub.replication import wire
from headwater_host.hub.replication.administration import REPLICATION, Administration
from headwater_host.hub.replication.follower import Follower, fenced, lineage
from headwater_host.hub.replication.leading import lead
from headwater_host.hub.replication.line import RETRY, Line, connect
from headwater_host.hub.replication.lineage import Lineage
from headwater_host.hub.replication.slaves import Ending, Slaves
from headwater_host.hub.rpc import Procedure
from headwater_host.hub.storage import Store
from headwater_host.hub.storage.backup import backup, install
from headwater_host.hub.storage.store import open_engine
from headwater_host.hub.wills import SlaveIds
from headwater_host.timeouts import within

#: The counter ``leads`` of a leader that was deposed; other values are the name of the hub that leads.
NONE = "?"
#: Seconds between a command and the change of role that it asks for.
ANSWER = 0.1
#: Seconds that slaves have to confirm what a leader has stored when it ends.
FAREWELL = 2.0
#: Seconds between a leader's attempts to tell hubs that do not follow that it leads.
HERALD = 5.0

_logger = logging.getLogger("headwater.hub")


class SlaveOf(Leadership):
    """The leadership that the connections of a slave see."""

    def __init__(self, leader: str):
        #: The leader's address, "" if none is known.
        self.address = leader

    @property
    def leader(self) -> str | None:
        """The leader's address, "" if none is known."""
        return self.address


class _Herald:
    """Tells another hub which epoch this leader has, so that an earlier leader steps down."""

    def __init__(self, follow: dict[str, Any]):
        self._follow = follow

    def begin(self, send: Callable[[bytes], None]) -> None:
        send(wire.control(follow=self._follow))

    def received(self, data: bytes) -> None:
        raise StorageError("this hub leads a later epoch")

    def lost(self) -> None:
        pass


class Site:
    """This hub's storage and broker in the role that it has. ``own`` is its address for SLAVEOF."""

    def __init__(
        self,
        config: HubConfig,
        replication: ReplicationConfig,
        own: Address,
        observer: Observer | None = None,
        tell: Callable[[Exception | None], object] = lambda error: None,
    ):
        self._config = config
        self._replication = replication
        self._own = own
        self._observer = observer
        self._tell = tell
        self._path = Path(config.storage)
        self._broker: Broker | None = None
        self._store: Store | None = None
        self._slaves: Slaves | None = None
        self._follower: Follower | None = None
        self._leader = SlaveOf("")
        self._tasks: set[asyncio.Task[None]] = set()
        self._switching: asyncio.Task[None] | None = None
        #: The later epoch that ended this hub's leadership, 0 without one.
        self.deposed = 0
        self._commands: dict[str, Callable[..., None]] = {
            "fence": self._fence,
            "promote": self._promote,
            "follow": self._point,
        }
        #: Why the last connection to the leader ended.
        self.why = ""

    # -- for the service ---------------------------------------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        """The broker of the current role."""
        assert self._broker is not None
        return self._broker

    @property
    def front(self) -> Broker:
        """The broker that new connections belong to."""
        return self.broker

    @property
    def store(self) -> Store:
        """The storage in its current role."""
        assert self._store is not None
        return self._store

    @property
    def is_leader(self) -> bool:
        """True if this hub leads."""
        return self._slaves is not None

    @property
    def is_following(self) -> bool:
        """True if this hub is a slave, and connected to its leader."""
        return self._follower is not None and self._follower.epoch > 0

    def start(self) -> None:
        """Open the storage and take the role that it says. Raises StorageError."""
        store = self._open()
        name = str(store.counter("leads") or self._replication.leader)
        if name == self._replication.name:
            self._lead(store)
        else:
            self._follow(store, name)

    async def stop(self) -> None:
        """Close everything. Raises StorageError when not all of it is stored."""
        if self._switching is not None:
            await asyncio.gather(self._switching, return_exceptions=True)
        if self._slaves is not None:
            # Answers leave before the connections end.
            done = asyncio.Event()
            self.broker.durable.after(done.set)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(FAREWELL, done.wait())
            await asyncio.sleep(0)
        await self._close()

    def health(self) -> str:
        """Return what is wrong with the hub, or ""."""
        if self.deposed:
            return f"epoch {self.deposed} has begun: run `headwater hub rejoin`"
        if self._follower is not None and not self.is_following:
            return f"not connected to the leader: {self.why}"
        failure = self.broker.durable.failure()
        return failure or (self._slaves.problem() if self._slaves is not None else "")

    # -- roles -------------------------------------------------------------------------------------------------------

    def _open(self) -> Store:
        config = self._config
        engine = open_engine(self._path, group_readable=config.group_readable)
        try:
            self._store = store = Store(engine, config.limits)
        except BaseException:
            engine.close()
            raise
        store.tell(self._tell)
        return store

    def _lead(self, store: Store, promised: tuple[int, str] | None = None) -> None:
        """Lead; ``promised``: the epoch and the id of a promotion."""
        replication = self._replication
        store.lead()
        if promised is not None:
            store.count_locally("leads", replication.name)
        self.deposed = 0
        self._slaves = slaves = lead(
            store, replication.slaves, replication.need, self._copy, self._on_deposed, promised
        )
        self._broker = Broker(
            store, self._config, self._observer, slaves=slaves, procedures=self._procedures(store)
        )
        slaves.measure(self._broker.metrics)
        _logger.info("this hub leads epoch %d; %d slaves confirm", slaves.lineage.epoch, replication.need)
        for name in replication.slaves:
            self._begin(self._herald(name, slaves))

    def _follow(self, store: Store, name: str) -> None:
        """Follow another hub; ``NONE``: wait until an operator says which."""
        store.follow()
        self.deposed = lineage(store).epoch + 1 if name == NONE else 0
        at = self._replication.hubs.get(name, "")
        self._follower = Follower(store, self._replication.name, self._incoming, self._on_snapshot)
        self._leader = SlaveOf(at)
        self._broker = Broker(
            store, self._config, leadership=self._leader, procedures=self._procedures(store)
        )
        self._follower.measure(self._broker.metrics)
        if name != NONE:
            self._begin(self._keep_following(name, self._follower))

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._slaves is not None:
            await self._slaves.close()
        self._slaves = self._follower = None
        broker = self._broker
        if broker is not None:
            broker.stop()
            for connection in list(broker.connections):
                connection.close()
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    def _switch(self, take: Callable[[Store], None], prepare: Callable[[], None] = lambda: None) -> None:
        """Close the storage in this role, ``prepare``, and take another role."""
        if self._switching is None or self._switching.done():
            self._switching = asyncio.get_running_loop().create_task(self._change(take, prepare))

    async def _change(self, take: Callable[[Store], None], prepare: Callable[[], None]) -> None:
        try:
            # An answer to the command that asked for this leaves first.
            await asyncio.sleep(ANSWER)
            await self._close()
            prepare()
            take(self._open())
        except Exception as error:
            _logger.exception("the hub cannot change its role")
            self._tell(error)

    def _on_deposed(self, epoch: int) -> None:
        """Another hub leads a later epoch: answer nothing any more, and wait for ``rejoin``."""
        if not self.deposed:
            self.deposed = epoch
            _logger.error("epoch %d has begun: this hub steps down; run `headwater hub rejoin`", epoch)
            self.store.count_locally("leads", NONE)
            self._switch(partial(self._follow, name=NONE))

    # -- a slave -----------------------------------------------------------------------------------------------------

    @property
    def _incoming(self) -> Path:
        return self._path.with_name(self._path.name + "-incoming")

    def _connection(self, half: Any, peer: Address = ("0.0.0.0", 0)) -> Line:
        r = self._replication
        login = (r.user, r.password) if r.user else None
        return Line(half, r.name, login, self._own, peer, self._config.clients.frame)

    async def _keep_following(self, leader: str, follower: Follower) -> None:
        """Connect to the leader, again and again. If it does not answer or does not lead, ask the other hubs."""
        hubs = self._replication.hubs
        names = itertools.cycle(
            [leader, *(name for name in hubs if name not in (leader, self._replication.name))]
        )
        name, redirected = next(names), False
        while True:
            # Before the first connection, the end of an earlier one is noticed.
            await asyncio.sleep(RETRY / 10 if redirected or name == leader else RETRY)
            moved = ""
            if name in hubs:
                follower.on_led = partial(self._on_led, name)
                try:
                    line = await connect(
                        partial(self._connection, follower), hubs[name], self._replication.context()
                    )
                    why, moved = f"{name}: {line.why}", line.moved
                except OSError as error:
                    why = f"{name}: {error}"
                if why != self.why:
                    _logger.warning("not connected to a leader: %s", why)
                self.why = why
            # Only hubs of the list get the password. Two that name each other are not asked all the time.
            known = next((other for other, at in hubs.items() if at == moved), None)
            redirected = known is not None and not redirected
            name = known if known is not None and redirected else next(names)

    def _on_led(self, name: str) -> None:
        """Note which hub leads."""
        self.why = ""
        self._leader.address = self._replication.hubs[name]
        if self.store.counter("leads") != name:
            self.store.count_locally("leads", name)

    def _on_snapshot(self) -> None:
        fence = self.store.counter("fence")
        name = self.store.counter("leads")

        def prepare() -> None:
            install(str(self._incoming), str(self._path), {"fence": fence, "leads": name})

        self._switch(partial(self._follow, name=str(name or self._replication.leader)), prepare)

    # -- a leader ----------------------------------------------------------------------------------------------------

    def _copy(self, ending: Ending) -> BinaryIO:
        """Return a copy of the storage as an open file."""
        with tempfile.TemporaryDirectory(dir=self._path.resolve().parent) as folder:
            copy = Path(folder) / "snapshot.db"
            backup(str(self._path), str(copy), ending.proceed)
            return copy.open("rb")

    async def _herald(self, name: str, slaves: Slaves) -> None:
        """Tell a hub that does not follow that this one leads: an earlier leader has to step down."""
        store = self.store
        while True:
            await asyncio.sleep(HERALD)
            if name in slaves.slaves:
                continue
            follow = {
                "version": wire.VERSION,
                "name": self._replication.name,
                "lineage": slaves.lineage.text(),
                "seq": store.seq,
                "synced": 0,
                "fence": slaves.lineage.epoch,
            }
            with contextlib.suppress(OSError):
                at = self._replication.hubs[name]
                await connect(partial(self._connection, _Herald(follow)), at, self._replication.context())

    # -- an operator's commands --------------------------------------------------------------------------------------

    def _procedures(self, store: Store) -> dict[str, Procedure]:
        found = Administration(self.status, store.written, SlaveIds().make, self._commands)
        return {REPLICATION: found.on_call}

    def status(self) -> dict[str, Any]:
        """Return the role and the position of this hub."""
        store, slaves, follower = self.store, self._slaves, self._follower
        history, fence = lineage(store), fenced(store)
        known: dict[str, Any] = {
            "name": self._replication.name,
            "role": "deposed" if self.deposed else "leader" if slaves is not None else "slave",
            "epoch": history.epoch,
            "lineage": history.text(),
            "fence": fence.epoch,
            "seq": store.durable,
            "committed": store.committed,
            "sync": self._replication.need,
        }
        if slaves is not None:
            known |= slaves.status()
        if follower is not None:
            known["leader"] = self._leader.address
            known["lag"] = follower.lag
            known["lag_seconds"] = round(follower.lag_seconds, 1)
            known["connected"] = self.is_following
        known["problem"] = self.health()
        return known

    def _fence(self, epoch: int, ident: str) -> None:
        """Promise to follow no leader of an earlier epoch than a promotion's, and no other one of that epoch."""
        store = self.store
        promised = max(lineage(store).epoch, fenced(store).epoch)
        before = fenced(store)
        if (before.epoch, before.ident) != (epoch, ident):
            if epoch <= promised:
                raise StorageError(f"epoch {promised} is promised already; {epoch} comes too late")
            store.count_locally("fence", Lineage().followed_by(epoch, ident, 0).text())
        if self._follower is not None:
            self._disconnect(self._follower)
        elif self.is_leader:
            self._on_deposed(epoch)

    def _disconnect(self, follower: Follower) -> None:
        """End the connection to the leader, and look for one of a later epoch."""
        for task in list(self._tasks):
            task.cancel()
        follower.lost()
        self._begin(
            self._keep_following(str(self.store.counter("leads") or self._replication.leader), follower)
        )

    def _promote(self, epoch: int, ident: str) -> None:
        """Lead the epoch that this slave is fenced for."""
        before = fenced(self.store)
        if self.is_leader or (before.epoch, before.ident) != (epoch, ident):
            raise StorageError(f"this hub has not promised epoch {epoch} to this promotion")
        self._switch(partial(self._lead, promised=(epoch, ident)))

    def _point(self, leader: str) -> None:
        """Follow another leader."""
        if leader not in self._replication.hubs or self.is_leader:
            raise StorageError(f"this hub cannot follow {leader!r}")
        self.store.count_locally("leads", leader)
        self._switch(partial(self._follow, name=leader))
