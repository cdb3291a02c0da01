"""The hub's TLS: who is let in, what comes that is no TLS, and handshakes that are never finished."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import Certificate, Pki
from tests.host.conftest import settings_of
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


@pytest.fixture
def hub(
    request: pytest.FixtureRequest, tmp_path: Path, pki: Pki
) -> contextlib.AbstractAsyncContextManager[HubProcess]:
    """A hub that listens in the clear, and with TLS, while a pair is not to be disturbed."""
    return tls_hub(tmp_path, pki, **settings_of(request)[1])


@contextlib.asynccontextmanager
async def tls_hub(
    folder: Path, pki: Pki, *, settings: str = "", client_ca: bool = False
) -> AsyncIterator[HubProcess]:
    text = f"""
{settings}
[[listener]]
port = 0
[[listener]]
port = 0
cert = "{pki.server.cert}"
key = "{pki.server.key}"
"""
    if client_ca:
        text += f'client_ca = "{pki.ca.cert}"\n'
    async with hub_process(folder, text) as hub, undisturbed(hub):
        yield hub


async def test_messages_of_any_size_over_tls(hub: HubProcess, pki: Pki) -> None:
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


@pytest.mark.settings(client_ca=True)
async def test_clients_need_a_certificate_where_they_do(hub: HubProcess, pki: Pki) -> None:
    known = await Peer.open(hub.addresses[1], tls=context(pki, pki.client))
    assert (await known.auth()).code == 0
    for own in (None, pki.stranger):
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            peer = await Peer.open(hub.addresses[1], tls=context(pki, own))
            with contextlib.suppress(EOFError, ssl.SSLError, ConnectionError):
                await peer.auth()
                pytest.fail("it was let in")
    await known.ping()


async def test_what_is_no_tls(hub: HubProcess, pki: Pki) -> None:
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


@pytest.mark.settings(settings="[clients]\nlogin = 2\nconnections = 10\n")
async def test_handshakes_that_are_never_finished(hub: HubProcess, pki: Pki) -> None:
    """They count as connections, and end when a login must have ended."""
    slow = [await Peer.open(hub.addresses[1]) for _ in range(8)]
    for n, peer in enumerate(slow):
        peer.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: n + 1])
    refused = await Peer.open(hub.addresses[0])
    assert (await refused.auth()).code == 0x97
    # The hub ends each without a word.
    assert [await peer.ended() for peer in slow] == [[]] * 8

    async def come_in() -> None:
        while (await (await Peer.open(hub.addresses[1], tls=context(pki))).auth()).code:
            await asyncio.sleep(0.05)

    # It counts a connection until its own end of it is closed, a little later.
    await asyncio.wait_for(come_in(), SECONDS)


async def test_what_comes_with_the_end_of_the_handshake_is_taken(hub: HubProcess, pki: Pki) -> None:
    """A client that sends AUTH and a frame that is none at once is answered, within TLS."""
    for _ in range(20):
        peer = await Peer.open(hub.addresses[1], tls=context(pki))
        peer.raw(b"\x40" * 100)
        await peer.ended()
        peer = await Peer.open(hub.addresses[1], tls=context(pki))
        assert (await peer.auth()).code == 0
        peer.abort()
