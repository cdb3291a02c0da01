"""A scripted client of the hub: it sends what the test says and shows what comes. And a hub to speak to."""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwater.fmq import frames, spec
from headwater.fmq.frames import Frame, decode_fields, decode_header, tag_list
from headwater.fmq.ids import MORE
from headwater.fmq.names import TYPES
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import decode_at
from headwater_host.fmq.values import encode as value
from headwater_host.hub.config import ClientLimits, HubConfig, Listener
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits
from tests.waiting import until

SECONDS = 200
_times = itertools.count(1_800_000_000_000_000_000)
#: The clients of each hub that runs.
_peers: "dict[Hub, list[Peer]]" = {}


def new_id(kind: int, process: int = 0) -> bytes:
    """A message id that nobody else has."""
    size = (process.bit_length() + 7) // 8
    head = bytes([kind << 4 | size]) + process.to_bytes(size, "little") + b"\0"
    return head + value(DateTime(next(_times)))


@dataclass
class Got:
    """A frame that came; ``values`` are its body's fields, of messages without the payload."""

    kind: int
    flags: int
    id: bytes
    values: list[Any]
    code: int = 0
    topic: str | None = None
    tags: tuple[str, ...] = ()
    payload: bytes = b""
    correlation: Any = None
    #: Bytes of its body.
    size: int = 0

    @property
    def name(self) -> str:
        return TYPES[self.kind]


def parse(data: bytes) -> tuple[Got, int] | None:
    """The first frame in ``data`` and where it ends."""
    f = Frame(data, 1 << 24)
    stop = decode_header(f, 0, len(data))
    assert stop >= 0, f"the hub sent {data.hex()}: {stop}"
    if stop == MORE or stop > len(data):
        return None
    bad = decode_fields(f)
    assert bad == 0, f"the hub sent {data[:stop].hex()}: {bad}"
    got = Got(f.kind(), f.head & 15, data[f.id_at : f.id_end], [], size=f.end - f.body)
    if got.kind in (spec.PUBLISH, spec.CONSUMERESP):
        first = 0
        if got.kind == spec.CONSUMERESP:
            first = 1
            correlation = data[f.at[0] : f.at[1]]
            got.correlation = (
                correlation if correlation[0] >> 4 == spec.CONSUME else decode_at(data, f.at[0], f.end)[0]
            )
        got.topic = decode_at(data, f.at[first], f.end)[0]
        got.tags = tuple(decode_at(data, f.tags_at, f.end)[0])
        got.payload = f.payload_bytes()
    else:
        got.values = [decode_at(data, f.at[n], f.end)[0] for n in range(f.count)]
        got.code = f.code
    return got, stop


class Peer:
    """A client. ``ask`` sends a frame and waits for its answer; what comes otherwise is in ``got``."""

    #: Seconds that it waits for bytes.
    patience: float = SECONDS

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._data = b""
        self.got: list[Got] = []
        self.process = 0
        self.auth_id = b""
        self.present = False

    @classmethod
    async def open(
        cls, hub: "Hub | tuple[str, int]", local: str = "", tls: "ssl.SSLContext | None" = None
    ) -> "Peer":
        """A connection, from the address ``local``, and with TLS, if that is wanted."""
        host, port = hub.addresses[0] if isinstance(hub, Hub) else hub
        here = (local, 0) if local else None
        peer = cls(*await asyncio.open_connection(host, port, limit=1 << 24, local_addr=here, ssl=tls))
        if isinstance(hub, Hub):
            _peers.setdefault(hub, []).append(peer)
        return peer

    @classmethod
    async def login(cls, hub: "Hub | tuple[str, int]", name: str = "", **more: Any) -> "Peer":
        peer = await cls.open(hub)
        answer = await peer.auth(name, **more)
        assert answer.code == 0, answer
        return peer

    async def auth(
        self,
        name: str = "",
        user: str | None = None,
        password: str | None = None,
        keep_alive: int = 0,
        clean: bool = True,
        will: tuple[Any, ...] = (),
    ) -> Got:
        texts = [text if text is None else text.encode() for text in (user, password)]
        answer = await self.ask(spec.AUTH, (name.encode(), *texts, keep_alive, clean, *will))
        self.auth_id = answer.id
        if answer.code == 0:
            self.process, self.present = answer.values[1], answer.values[2]
        return answer

    def send(self, kind: int, values: Any = (), flags: int = 0, ident: bytes = b"") -> bytes:
        """Send a frame: its id."""
        ident = ident or new_id(kind, self.process)
        size = 64 + sum(
            len(v) if isinstance(v, bytes) else 64 * (1 + len(v)) if isinstance(v, tuple) else 32
            for v in values
        )
        buf = bytearray(size + 1024)
        end = frames.encode_frame(buf, 0, len(buf), kind << 4 | flags, ident, values)
        assert end > 0, (kind, values, end)
        self.raw(buf[:end])
        return ident

    def raw(self, data: "bytes | bytearray") -> None:
        if self._writer.is_closing():
            raise ConnectionResetError
        self._writer.write(data)

    @property
    def more(self) -> bool:
        """Whether a frame has come that was not looked at."""
        return bool(self.got) or parse(self._data) is not None

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        tags: tuple[str, ...] = (),
        ident: bytes = b"",
        dup: bool = False,
    ) -> bytes:
        tags_ = tag_list([tag.encode() for tag in tags])
        return self.send(spec.PUBLISH, (topic.encode(), tags_, payload), dup << 3 | qos << 1 | retain, ident)

    async def next(self) -> Got:
        """The next frame that comes, or that was kept by ``ask``."""
        return self.got.pop(0) if self.got else await self._read()

    async def _read(self) -> Got:
        while True:
            found = parse(self._data)
            if found is not None:
                self._data = self._data[found[1] :]
                return found[0]
            self._data += await self.receive()

    async def receive(self) -> bytes:
        """The bytes that come next. Raises EOFError."""
        data = await asyncio.wait_for(self._reader.read(1 << 16), self.patience)
        if not data:
            raise EOFError
        return data

    async def answer(self, ident: bytes) -> Got:
        """The answer to a frame; other frames that come are kept."""
        for n, got in enumerate(self.got):
            if got.id == ident:
                return self.got.pop(n)
        while True:
            got = await self._read()
            if got.id == ident:
                return got
            self.got.append(got)

    async def answer_or_response(self, ident: bytes) -> Got:
        """What a CONSUME with ONCE brings."""
        kept: list[Got] = []
        while True:
            got = await self.next()
            if got.id == ident or got.correlation == ident:
                self.got = kept + self.got
                return got
            kept.append(got)

    async def ask(self, kind: int, values: Any = (), flags: int = 0, ident: bytes = b"") -> Got:
        return await self.answer(self.send(kind, values, flags, ident))

    async def send_message(self, topic: str, payload: bytes, qos: int = 1, **more: Any) -> bytes:
        """Publish, to the end of its handshake: the id."""
        ident = self.publish(topic, payload, qos, **more)
        if qos:
            got = await self.answer(ident)
            assert (got.name, got.code) == (("ACK", 0) if qos == 1 else ("PUBREC", 0)), got
        if qos == 2:
            assert (await self.ask(spec.PUBREL, ident=ident)).name == "PUBCOMP"
        return ident

    async def subscribe(
        self, topic: str, tags: tuple[str, ...] = (), condition: str = "", group: str = ""
    ) -> int:
        got = await self.ask(
            spec.SUBSCRIBE,
            (topic.encode(), tuple(tag.encode() for tag in tags), condition.encode(), group.encode()),
        )
        assert got.code == 0, got
        return int(got.values[1])

    def consume(self, subscription: int, window: int = 0, need_ack: bool = True) -> bytes:
        values = (subscription, window) if window else (subscription,)
        return self.send(spec.CONSUME, values, spec.NEEDACK if need_ack else 0)

    def ack(self, ident: bytes) -> None:
        self.send(spec.ACK, ident=ident)

    async def ping(self) -> None:
        """Everything that was sent before is taken."""
        await self.ask(spec.PINGREQ)

    async def ended(self) -> list[Got]:
        """Everything up to the end of the connection."""
        found = self.got
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                found.append(await self._read())
        return found

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def leave(self) -> None:
        """Say goodbye."""
        self.ack(self.auth_id)
        await self.ended()
        await self.close()

    def stop_reading(self) -> None:
        """Take nothing any more."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def is_full(self) -> bool:
        """Whether the hub does not take what is sent."""
        return self._writer.transport.get_write_buffer_size() > 4 << 20

    def abort(self) -> None:
        self._writer.transport.abort()


def config(
    path: Path, limits: Limits | None = None, clients: ClientLimits | None = None, **more: Any
) -> HubConfig:
    return HubConfig(
        path / "hub.db",
        listeners=(Listener(port=0),),
        limits=limits or Limits(),
        clients=clients or ClientLimits(),
        **more,
    )


def abort_clients(hub: Hub) -> None:
    """End the hub's clients, so that it need not wait for them when it stops."""
    for peer in _peers.pop(hub, ()):
        peer.abort()


@contextlib.asynccontextmanager
async def hub_of(settings: HubConfig, *, with_clients: bool = True) -> AsyncIterator[Hub]:
    """A hub. Its clients end first, so that it need not wait for them, unless a test is about that."""
    hub = Hub(settings)
    await hub.start()
    try:
        yield hub
    finally:
        if with_clients:
            abort_clients(hub)
        await hub.stop()


__all__ = ["ClientLimits", "Limits", "Peer", "config", "hub_of", "new_id", "replace", "until"]
