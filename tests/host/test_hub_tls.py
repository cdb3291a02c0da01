"""The hub's TLS: who is let in, what comes that is no TLS, and handshakes that are never finished."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import Certificate, Pki
from tests.host.hub_client import SECONDS, Peer
from tests.host.hub_process import HubProcess, hub_process, undisturbed

MIB = 1 << 20


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


def context(pki: Pki, own: Certificate | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=pki.ca.cert)
    if own is not None:
        made.load_cert_chain(own.cert, own.key)
    return made


@contextlib.asynccontextmanager
async def tls_hub(directory: Path, pki: Pki, more: str = "", settings: str = "") -> AsyncIterator[HubProcess]:
    """A hub that listens in the clear, and with TLS."""
    text = f"""
{settings}
[[listener]]
port = 0
[[listener]]
port = 0
cert = "{pki.server.cert}"
key = "{pki.server.key}"
{more}
"""
    async with hub_process(directory, text) as hub:
        yield hub


async def over(peer: Peer) -> bool:
    """Whether the hub ends the connection, without a word."""
    return await peer.ended() == []


async def test_messages_of_any_size_over_tls(tmp_path: Path, pki: Pki) -> None:
    async with tls_hub(tmp_path, pki) as hub, undisturbed(hub):
        peer = await Peer.open(hub.addresses[1], tls=context(pki))
        assert (await peer.auth("a", keep_alive=60)).code == 0
        talker = await hub.login()
        await peer.subscribe("t")
        for size in (0, 1, 1000, 100_000, 3 * MIB):
            await talker.send_message("t", bytes(size))
            got = await peer.next()
            assert len(got.payload) == size
            peer.ack(got.id)
            await peer.send_message("u", bytes(size), 2)
        await peer.leave()


async def test_clients_need_a_certificate_where_they_do(tmp_path: Path, pki: Pki) -> None:
    async with tls_hub(tmp_path, pki, f'client_ca = "{pki.ca.cert}"') as hub, undisturbed(hub):
        known = await Peer.open(hub.addresses[1], tls=context(pki, pki.client))
        assert (await known.auth()).code == 0
        for own in (None, pki.stranger):
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                peer = await Peer.open(hub.addresses[1], tls=context(pki, own))
                with contextlib.suppress(EOFError, ssl.SSLError, ConnectionError):
                    await peer.auth()
                    pytest.fail("it was let in")
        await known.ping()


async def test_what_is_no_tls(tmp_path: Path, pki: Pki) -> None:
    async with tls_hub(tmp_path, pki) as hub, undisturbed(hub):
        for data in (
            b"\x00\x00\x03" + bytes(100),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\xff\xff" + bytes(999),
        ):
            peer = await Peer.open(hub.addresses[1])
            peer.raw(data)
            with contextlib.suppress(AssertionError):
                # An alert of TLS is not a frame.
                await peer.ended()
        # TLS where there is none is no frame.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await Peer.open(hub.addresses[0], tls=context(pki))


def test_handshakes_that_are_never_finished(tmp_path: Path, pki: Pki) -> None:
    """They count as connections, and end when a login must have ended."""

    async def main() -> None:
        settings = "[clients]\nlogin = 2\nconnections = 10\n"
        async with tls_hub(tmp_path, pki, settings=settings) as hub, undisturbed(hub):
            slow = [await Peer.open(hub.addresses[1]) for _ in range(8)]
            for n, peer in enumerate(slow):
                peer.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: n + 1])
            refused = await Peer.open(hub.addresses[0])
            assert (await refused.auth()).code == 0x97
            assert all([await over(peer) for peer in slow])
            # The hub counts a connection until its own end of it is closed, a little later.
            while (await (await Peer.open(hub.addresses[1], tls=context(pki))).auth()).code:
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(main(), SECONDS))


async def test_what_comes_with_the_end_of_the_handshake_is_taken(tmp_path: Path, pki: Pki) -> None:
    """A client that sends AUTH and a frame that is none at once is answered, within TLS."""
    async with tls_hub(tmp_path, pki) as hub, undisturbed(hub):
        for _ in range(20):
            peer = await Peer.open(hub.addresses[1], tls=context(pki))
            peer.raw(b"\x40" * 100)
            await peer.ended()
            peer = await Peer.open(hub.addresses[1], tls=context(pki))
            assert (await peer.auth()).code == 0
            peer.abort()
