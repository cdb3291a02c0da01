"""ELECT, as one hub sends it to another (docs/protocols/fmq.md, section 4)."""

import asyncio
import contextlib
import ssl
import time
from typing import NamedTuple

from headwater.fmq import spec
from headwater.fmq.frames import Frame, decode_fields, decode_header
from headwater.fmq.ids import MORE
from headwater_host.fmq import address
from headwater_host.fmq.address import Address
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import decode_at, encode
from headwater_host.hub import frames
from headwater_host.timeouts import within

#: Bits of a version below the epoch.
_SEQ_BITS = 48
#: Bytes of the longest answer.
_LONGEST = 4096


def version(epoch: int, seq: int) -> int:
    """Return the version of the data after change ``seq`` of an epoch. Versions compare as integers."""
    return (epoch & 0xFFFF) << _SEQ_BITS | seq & (1 << _SEQ_BITS) - 1


class Answer(NamedTuple):
    """The result of an ELECT. ``listens``: False if nothing listens at the address, so the hub there has ended.
    ``agrees``: the hub knows no other leader. ``leader``: the leader that it names, and its version."""

    listens: bool = True
    agrees: bool = False
    leader: tuple[Address, int] | None = None
    #: The reason code of a refusal.
    code: int = 0


async def elect(
    hub: tuple[str, int],
    candidate: Address,
    own_version: int,
    *,
    announce: bool = False,
    timeout: float,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send ELECT to a hub, without a login, and return its answer; ``Answer()`` if none came in time, or if its
    certificate is not valid."""
    with contextlib.suppress(asyncio.TimeoutError, OSError, asyncio.IncompleteReadError):
        return await within(timeout, _elect(hub, candidate, own_version, announce, tls))
    return Answer()


async def _elect(
    hub: tuple[str, int], candidate: Address, own_version: int, announce: bool, tls: ssl.SSLContext | None
) -> Answer:
    try:
        reader, writer = await asyncio.open_connection(*hub, limit=_LONGEST, ssl=tls)
    except ConnectionRefusedError:
        return Answer(listens=False)
    try:
        flags = spec.VOTE | spec.APPROVE if announce else 0
        ident = bytes((spec.ELECT << 4, 0)) + encode(DateTime(time.time_ns()))
        body = address.encode(candidate) + encode(own_version)
        writer.write(frames.framed(spec.ELECT << 4 | flags, ident, body))
        data = b""
        while len(data) < _LONGEST:
            more = await reader.read(_LONGEST)
            if not more:
                break
            data += more
            f = Frame(data, _LONGEST)
            end = decode_header(f, 0, len(data))
            if end < 0 or (end != MORE and end <= len(data)):
                return _answer(f, data) if end > 0 and decode_fields(f) == 0 else Answer()
        return Answer()
    finally:
        writer.close()


def _answer(f: Frame, data: bytes) -> Answer:
    body = data[f.body : f.end]
    if f.kind() != spec.ACK or f.code:
        return Answer(code=f.code)
    if len(body) < 2:
        return Answer(agrees=True)
    where, at = address.decode(body, 0)
    return Answer(leader=(where, decode_at(body, at, len(body))[0]))
