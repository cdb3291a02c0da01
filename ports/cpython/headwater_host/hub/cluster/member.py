"""A hub among several on one PostgreSQL database: it follows, leads, and changes between the two.

As a follower the hub has everything in memory that the leader has written, up to the last moment, so it does not load
anything when it begins to lead. It takes a lease over only while that holds.
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO

from headwater.mqtt import spec5
from headwater_host.fmq.address import Address
from headwater_host.hub import leadership
from headwater_host.hub.broker import Broker
from headwater_host.hub.cluster.follower import Follower
from headwater_host.hub.cluster.postgres_lease import PostgresLease, promoted
from headwater_host.hub.config import ClusterConfig, HubConfig
from headwater_host.hub.errors import BehindError, FencedError, RefusedError, StorageError
from headwater_host.hub.leadership import Leadership
from headwater_host.hub.metrics import Metrics
from headwater_host.hub.observer import Observer
from headwater_host.hub.replication.administration import REPLICATION, Administration
from headwater_host.hub.replication.leading import lead
from headwater_host.hub.replication.slaves import Ending, Slaves
from headwater_host.hub.storage import Store
from headwater_host.hub.storage.contract import Engine
from headwater_host.hub.storage.copy import copy_to_file
from headwater_host.hub.storage.store import open_engine
from headwater_host.hub.wills import SlaveIds
from headwater_host.timeouts import within

#: Seconds between looks at the lease and at the leader's changes.
LOOK = 0.05
#: Changes that a follower reads at once, at most; fewer where the database is too slow for that, at least.
_SOME, _FEW = 1000, 10
#: Seconds until a storage that failed is opened again.
_AGAIN = 0.5
#: Seconds that a handover waits for answers to leave, and for another hub to lead.
HANDOVER = 5.0
#: The same for a hub that stops.
FAREWELL = 1.0

_logger = logging.getLogger("headwater.hub")


class Member(Leadership):
    """This hub's part in the cluster. ``front`` is what its connections talk to. ``tell`` gets errors of the storage.

    Everything happens in the event loop's thread; the lease has a thread of its own.
    """

    def __init__(
        self,
        config: HubConfig,
        cluster: ClusterConfig,
        own: Address,
        observer: Observer | None,
        tell: Callable[[Exception | None], object],
    ):
        self._config = config
        self._standby = cluster.standby == "required"
        self._own = own
        self._observer = observer
        self._tell = tell
        self._engine: Engine | None = None
        self._stopping = False
        #: What the database holds; None until it is loaded.
        self.store: Store | None = None
        self.broker: Broker | None = None
        #: The epoch that the broker serves.
        self._epoch = 0
        #: True once the storage says that another hub leads.
        self._fenced = False
        #: Changes that are read at once.
        self._some = _SOME
        #: True once everything has been read that another hub has written.
        self._ready = False
        #: Why the storage cannot be followed, or "".
        self._problem = ""
        #: Times that this hub began to lead.
        self.takeovers = 0
        #: The slaves of a leader, if it takes any.
        self._slaves: Slaves | None = None
        #: The epoch that a promotion of a slave has begun; 0 without one.
        self._deposed = 0
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.lease = PostgresLease(
            str(config.storage),
            cluster.advertise,
            own,
            cluster.lease,
            standby=self._standby,
            tls=cluster.context(),
            changed=lambda: _soon(loop, self._changed.set),
            asked=lambda: _soon(loop, self._asked),
        )
        self.lease.seq = lambda: self.store.seq if self.store is not None else 0
        self._handing: asyncio.Task[None] | None = None
        self.follower = self._follow()
        self._governing: asyncio.Task[None] | None = None

    # -- what others see -------------------------------------------------------------------------------------------

    @property
    def front(self) -> Broker | Follower:
        """The part that serves connections now."""
        return self.broker or self.follower

    @property
    def leader(self) -> str | None:
        """The address of the hub that leads, "" if none is known; None if this hub leads."""
        if self.leads():
            return None
        found = self.lease.leader()
        return "" if found == self.lease.advertise else found

    def leads(self) -> bool:
        """Return whether the lease of the broker's epoch is trusted now."""
        return self.lease.holds(self._epoch)

    def elect(self, candidate: Address, announced: bool) -> tuple[Address, int] | None:
        """Answer ELECT from the lease. Raises RefusedError."""
        if announced:
            self.lease.poke()
        try:
            known = self.lease.elect()
        except BlockingIOError:
            raise RefusedError(spec5.SERVER_BUSY, "this hub is taking the lease over; ask again") from None
        if known is None or (ip_address(known[0][0]), known[0][1]) == (
            ip_address(candidate[0]),
            candidate[1],
        ):
            return None
        return known

    def health(self) -> str:
        """Return what is wrong, or ""."""
        if self._deposed:
            return promoted(self._deposed)
        if self.broker is not None:
            return self.broker.durable.failure()
        return self._problem or self.lease.problem or ("" if self._ready else "the hub reads its storage")

    def measure(self, metrics: Metrics) -> None:
        """Add the metrics of leadership."""
        metrics.gauge("leads", "1 if this hub leads, otherwise 0.").call(lambda: float(self.leads()))
        metrics.gauge("epoch", "The epoch of leadership that this hub knows.").call(
            lambda: float(self.lease.row.epoch) if self.lease.row is not None else 0.0
        )
        metrics.gauge("position", "The last change that this hub has.").call(lambda: float(self.lease.seq()))
        metrics.counter("takeovers_total", "Times that this hub began to lead.").call(
            lambda: float(self.takeovers)
        )

    def _follow(self) -> Follower:
        follower = Follower(self._config, self)
        self.measure(follower.metrics)
        return follower

    # -- changes of the role ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part in the election. The hub has to listen already."""
        self._governing = asyncio.ensure_future(self._govern())

    async def _govern(self) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(LOOK, self._changed.wait())
            self._changed.clear()
            try:
                await self._look()
            except StorageError as error:
                await self._failed(error)
            except Exception:
                _logger.exception("the hub's role could not be changed")
                await self._failed(StorageError("an error in the hub, which is logged"))

    async def _look(self) -> None:
        """Do what the lease and the storage ask for."""
        if self._handing is not None:
            return
        if self.broker is not None:
            if self._fenced or self._deposed or not self.leads():
                await self._step_down()
        elif self.store is None:
            await self._load()
        elif self.lease.epoch:
            await self._lead(self.store, self.lease.epoch)
        else:
            self._read_on(self.store)

    async def _load(self) -> None:
        """Read the whole storage, in a thread."""

        def load() -> Store:
            # ``stop`` may abort it: a database that falls silent meanwhile would keep the thread.
            self._engine = engine = open_engine(self._config.storage, standby=self._standby)
            if self._stopping:
                engine.abort()
            try:
                return Store(engine, self._config.limits)
            except BaseException:
                engine.close()
                raise

        self.store = store = await asyncio.to_thread(load)
        self._problem = ""
        self._deposed = int(store.counter("deposed") or 0)
        # The tables exist now.
        self.lease.start()
        self._read_on(store)

    def _read_on(self, store: Store) -> None:
        """Apply what the leader has written since; stand for the lease once that is all."""
        if self._mirror(store, 1) and not self._ready:
            self._ready = True
            self.lease.stand(not self._deposed)

    def _mirror(self, store: Store, rounds: int) -> bool:
        """Apply what the leader has written since; return whether that is all."""
        for _ in range(rounds):
            try:
                if store.catch_up(self._some):
                    self._problem = ""
                    return True
            except BehindError:
                raise
            except StorageError as error:
                # Nothing is lost: it reads on when the database answers.
                self._some = max(self._some // 4, _FEW)
                self._report(error)
                return False
            self._some = min(self._some * 2, _SOME)
            self._problem = ""
        return False

    async def _lead(self, store: Store, epoch: int) -> None:
        """Continue where the former leader ended, which cannot write any more."""
        self.follower.defers = True
        while not self._mirror(store, 10):
            if not self.lease.holds(epoch):
                raise StorageError("the lease ended before this hub had read everything")
            await asyncio.sleep(0.01 if self._problem else 0)
        await asyncio.to_thread(store.lead, epoch)
        if not self.lease.holds(epoch):
            raise StorageError("the lease ended before this hub was ready to lead")
        self._fenced = False
        store.tell(self._on_storage)
        # The broker asks whether this hub leads.
        self._epoch = epoch
        try:
            broker = self._serve(store)
        except BaseException:
            self._epoch = 0
            raise
        self.measure(broker.metrics)
        self.broker = broker
        self.takeovers += 1
        _logger.info("leading in epoch %d, from change %d on", epoch, store.seq)
        self.follower.move(broker)

    def _serve(self, store: Store) -> Broker:
        """Return the broker of a leader, with its slaves."""
        replication = self._config.replication
        if replication is None:
            return Broker(store, self._config, self._observer, self)
        self._slaves = slaves = lead(store, (), 0, self._snapshot, self._on_deposed)

        def status() -> dict[str, Any]:
            return {
                "name": replication.name,
                "role": "leader",
                "epoch": slaves.lineage.epoch,
                "lineage": slaves.lineage.text(),
                "fence": 0,
                "seq": store.durable,
                "committed": store.committed,
                "sync": 0,
                **slaves.status(),
            }

        administration = Administration(status, store.written, SlaveIds().make)
        procedures = {REPLICATION: administration.on_call}
        broker = Broker(store, self._config, self._observer, self, slaves, procedures)
        slaves.measure(broker.metrics)
        return broker

    def _snapshot(self, ending: Ending) -> BinaryIO:
        """Return a copy of the database as an open SQLite file, for a slave."""
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.closing(open_engine(self._config.storage)) as source,
            ending.aborts(source.abort),
        ):
            path = Path(folder) / "snapshot.db"
            copy_to_file(source, str(path))
            return path.open("rb")

    def _on_deposed(self, epoch: int) -> None:
        """A slave was promoted: no hub of this database leads any more."""

        def stored() -> None:
            self._deposed = epoch
            self._changed.set()

        if not self._deposed and self.store is not None:
            _logger.error("a slave was promoted to epoch %d: the hubs of this database step down", epoch)
            self.store.count_locally("deposed", epoch)
            self.store.after(stored)

    def _on_storage(self, error: Exception | None) -> None:
        self._tell(error)
        if isinstance(error, FencedError):
            self._fenced = True
            self._changed.set()

    async def _step_down(self) -> None:
        """Close every connection with the next leader's address, if it is known, and follow."""
        broker, epoch = self.broker, self._epoch
        assert broker is not None
        _logger.warning("this hub leads no longer; epoch %d is over", epoch)
        self.broker, self._epoch = None, 0
        slaves, self._slaves = self._slaves, None
        if slaves is not None:
            await slaves.close()
        self.lease.stand(False)
        self.lease.release(epoch)
        broker.stop(*leadership.refusal(self.leader or ""))
        await self._drop_store()
        for connection in list(broker.connections):
            # It was closed; a client that does not read is not waited for.
            asyncio.get_running_loop().call_later(1.0, connection.abort)

    async def _drop_store(self) -> None:
        engine, store = self._engine, self.store
        self._engine = self.store = None
        self._ready = False
        if engine is not None:
            engine.abort()
        if store is not None:
            with contextlib.suppress(StorageError):
                await store.close()

    async def _failed(self, error: StorageError) -> None:
        """The storage cannot be used: do not lead, and open it again later."""
        self._report(error)
        self.lease.stand(False)
        if self.lease.epoch:
            self.lease.release(self.lease.epoch)
        if self.broker is not None:
            await self._step_down()
        else:
            await self._drop_store()
        if self.follower.defers:
            self.follower.stop()
            self.follower = self._follow()
        await asyncio.sleep(_AGAIN)

    def _report(self, error: StorageError) -> None:
        if str(error) != self._problem:
            _logger.error("the hub's storage: %s; trying again", error)
        self._problem = str(error)

    # -- the handover ----------------------------------------------------------------------------------------------

    def _asked(self) -> None:
        """Hand leadership over, because the operator has asked for it."""
        if self.broker is not None and self._handing is None:
            self._handing = asyncio.ensure_future(self._hand_over(self.broker))

    async def _hand_over(self, broker: Broker, seconds: float = HANDOVER) -> None:
        """Answer what has come, let another hub lead, and send the clients there.

        Nothing is read from clients meanwhile, so no message is refused; what they have sent they send there.
        """
        epoch = self._epoch
        _logger.info("handing leadership over")
        try:
            self.follower.defers = True
            self.broker = None
            broker.pause(True)
            done = asyncio.Event()
            broker.durable.after(done.set)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(seconds, done.wait())
            for _ in range(3):
                # Answers leave at the end of a turn.
                await asyncio.sleep(0)
            self.lease.stand(False)
            self.lease.release(epoch)
            end = asyncio.get_running_loop().time() + seconds
            while not self.leader and asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.01)
            if not self.leader:
                _logger.warning("no other hub leads")
        finally:
            self.broker, self._handing = broker, None
            await self._step_down()
            waiting, self.follower = self.follower, self._follow()
            for connection in list(waiting.connections):
                waiting.gone(connection)
                connection.move(self.follower.shared, self.follower)
            waiting.stop()
            self._changed.set()

    async def stop(self) -> None:
        """Leave the cluster. Raises StorageError when not everything could be stored."""
        self._stopping = True
        if self._handing is not None:
            await asyncio.wait({self._handing})
        if self._governing is not None:
            self._governing.cancel()
            await asyncio.gather(self._governing, return_exceptions=True)
        if self.broker is not None:
            await self._hand_over(self.broker, FAREWELL)
        await asyncio.to_thread(self.lease.stop)
        self.follower.stop()
        await self._drop_store()


def _soon(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(action)
