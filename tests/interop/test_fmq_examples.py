"""FMQ on MicroPython, against a hub: the device example as it stands, over restarts; and over TLS."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from headwater_host.fmq.values import decode
from headwater_host.hub.config import Listener
from headwater_host.hub.service import Hub
from tests import built
from tests.certificates import Pki
from tests.host.hub_client import Peer, config, hub_of, until
from tests.interop.test_fmq_hub import stored
from tools import deploy, mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

TLS = Path(__file__).parent / "device" / "fmq_tls.py"
EXAMPLE = ROOT / "examples" / "device" / "fmq_telemetry.py"
TOPIC = "board-1/telemetry"


@pytest.mark.needs_micropython
@pytest.mark.parametrize("form", ["modules", "component"])
async def test_telemetry_goes_on_over_a_hub_that_restarts(form: str, tmp_path: Path) -> None:
    files = deploy.package_files("mpy")
    if form == "component":
        files = built.on_board("headwater-fmq", tmp_path / "built")
    source = EXAMPLE.read_text(encoding="utf-8")

    async def has_more(hub: Hub, board: VirtualBoard, than: int) -> int:
        await until(lambda: len(stored(hub, TOPIC)) > than)
        await asyncio.to_thread(board.wait_for, "stored", 60)
        return len(stored(hub, TOPIC))

    settings = config(tmp_path)
    async with hub_of(settings) as hub:
        port = hub.addresses[0][1]
        program = source.replace('Tcp("hub.local", 7760)', f'Tcp("127.0.0.1", {port})')
        assert program != source
        board = VirtualBoard(main=program, files=files, name="fmq")
        await asyncio.to_thread(board.start)
        before = await has_more(hub, board, 0)
        sample = decode(stored(hub, TOPIC)[0])
        assert isinstance(sample, dict)
        assert sample["celsius"] == 21.5
        assert isinstance(sample["time"], int)
    try:
        mark = await asyncio.to_thread(board.wait_for, "reconnecting in 1 s:", 60)
        assert mark
        async with hub_of(replace(settings, listeners=(Listener(port=port),))) as hub:
            assert await has_more(hub, board, before + 1) > before + 1
            peer = await Peer.login(hub)
            await peer.send_message("board-1/commands", b"blink")
            await asyncio.to_thread(board.wait_for, "board-1/commands b'blink'", 60)
            await peer.leave()
    finally:
        await asyncio.to_thread(board.close)


@pytest.mark.needs_micropython
async def test_a_board_publishes_over_tls(pki: Pki, tmp_path: Path) -> None:
    listener = Listener(port=0, cert=pki.server.cert, key=pki.server.key)

    async with hub_of(replace(config(tmp_path), listeners=(listener,))) as hub:
        path = [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
        words = [str(hub.addresses[0][1]), str(pki.ca.cert_der), "secret"]
        done = await asyncio.to_thread(run_unix, TLS, *words, path=path, timeout=60)
        assert done.stdout.strip() == "stored [1, 2]", done.stdout
        assert sorted(stored(hub, "secret")) == [b"0", b"1", b"2"]
