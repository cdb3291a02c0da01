"""Wills, and ids of messages that the hub publishes."""

import logging
import secrets
import time

from headwater.fmq import spec
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import encode
from headwater_host.hub import frames
from headwater_host.hub.clients import Client, Will
from headwater_host.hub.contracts import Numbering, Willing
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.observer import Observer
from headwater_host.hub.registry import Registry

#: The client id under which the hub has a process number.
HUB = "$hub"

_logger = logging.getLogger("headwater.hub")


class OwnIds:
    """Makes message ids of the hub: its process number, a thread number for each start, and a time that only grows."""

    def __init__(self, store: Numbering):
        # The clock may have been set back since the last start, so each start is a thread of its own.
        self._begin(store.sessions.process(HUB), store.start())

    def _begin(self, process: int, thread: int) -> None:
        self.process = process
        size = (process.bit_length() + 7) // 8
        more = ((thread >> 4).bit_length() + 7) // 8
        self._head = (
            bytes([spec.PUBLISH << 4 | size])
            + self.process.to_bytes(size, "little")
            + bytes([more << 4 | thread & 15])
            + (thread >> 4).to_bytes(more, "little")
        )
        self._last = 0

    def make(self) -> bytes:
        """Return a new, unique message id."""
        self._last = max(self._last + 1, time.time_ns())
        return self._head + encode(DateTime(self._last))


class SlaveIds(OwnIds):
    """Makes message ids of a slave, which stores nothing: without a process number, in a random thread."""

    def __init__(self) -> None:
        self._begin(0, secrets.randbits(60))


class Wills:
    """Keeps the will of each client in the storage until it is published or taken back."""

    def __init__(self, store: Willing, registry: Registry, ids: OwnIds, observer: Observer | None):
        self._store = store
        self._registry = registry
        self._ids = ids
        self._observer = observer

    def restore(self) -> None:
        """Publish the wills of clients that were connected when the hub was killed."""
        for process, will in self._store.sessions.wills.items():
            self._publish(process, Will.restored(will))

    def keep(self, client: Client, will: Will | None) -> None:
        """Replace the will of a client; None takes it back. It is stored before AUTH is answered."""
        if will is not None:
            self._store.sessions.keep_will(client.process, will.kept())
        elif client.will is not None:
            self._store.sessions.forget_will(client.process)
        client.will = will

    def publish(self, client: Client) -> None:
        """Publish the will of a client that has vanished, if it has one."""
        if client.will is not None:
            self._publish(client.process, client.will)
            client.will = None

    def _publish(self, process: int, will: Will) -> None:
        # Both changes are in one transaction, so it is published once.
        self._store.sessions.forget_will(process)
        try:
            self._registry.require(will.topic)
            ident = self._ids.make()
            self._store.publish(
                will.topic,
                ident,
                self._ids.process,
                will.payload,
                qos=will.qos,
                retain=will.retain,
                time_ns=self._store.age.now(),
            )
        except RefusedError as error:
            _logger.warning("a will for %r is not published: %s", will.topic, error)
            return
        if self._observer is not None:
            body = frames.message(will.topic, (), will.payload)
            self._observer.published(None, frames.publish(ident, body, will.qos, retain=will.retain))
