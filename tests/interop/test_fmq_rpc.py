"""RPC over a real hub: the core's client in both roles, on CPython and on MicroPython."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq.calls import Calls
from headwater.fmq.client import Client
from headwater.fmq.frames import Frame
from headwater_host.client.fmq import Client as HostClient
from headwater_host.client.fmq import decode, encode
from headwater_host.errors import ArgumentError
from headwater_host.hub.service import Hub
from headwater_host.lifetime import Clocks
from tests.host.hub_client import ClientLimits, Peer, config, hub_of, until
from tests.host.test_hub_rpc import asked, call, reply, serving
from tests.interop.dialer import SocketDialer
from tests.interop.test_fmq_hub import port, wait_for
from tools import mpy
from tools.broker import HOST
from tools.runtimes import run_unix

BOARD = Path(__file__).parent / "device" / "fmq_rpc.py"


async def on_board(hub: Hub, *words: object) -> str:
    """What the board's program prints."""
    path = [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
    done = await asyncio.to_thread(run_unix, BOARD, str(port(hub)), *map(str, words), path=path, timeout=100)
    return str(done.stdout).strip()


def is_served(hub: Hub, topic: str) -> bool:
    return any(
        subscribed.subscription.topic == f"$rpc/{topic}"
        for connection in hub.broker.connections
        if connection.client is not None
        for subscribed in connection.client.subscriptions.values()
    )


async def test_the_cores_client_calls_and_serves(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path, clients=ClientLimits(rpc=0.2))) as hub:

        def work() -> None:
            caller, responder = Client(SocketDialer(port(hub))), Client(SocketDialer(port(hub)))
            later: list[bytes] = []
            answers: list[Any] = []
            refused: list[tuple[int, int]] = []

            def on_call(f: Frame) -> None:
                if f.payload_bytes() == b"later":
                    later.append(bytes(f.buf[f.id_at : f.id_end]))
                elif f.payload_bytes() == b"refuse":
                    assert Calls(responder).refuse(f, 0x83, b"not today") == 0
                else:
                    assert Calls(responder).reply(f, f.topic_bytes() + b" " + f.payload_bytes()) == 0

            responder.session.on_call = on_call
            responder.session.on_refused = lambda n, code: refused.append((n, code))
            caller.session.on_result = lambda f: answers.append((caller.session.source, f.payload_bytes()))
            caller.on_answer = lambda n, code: answers.append((n, code))
            granted: list[int] = []
            responder.on_answer = lambda n, code: granted.append(code)
            for client in (caller, responder):
                client.connect()
            nobody = Calls(caller).call(b"echo", b"x")
            wait_for(caller, lambda: answers == [(nobody, 0x10)])
            responder.subscribe(b"$rpc/echo")
            wait_for(responder, lambda: granted == [0])

            def answered(number: int) -> Any:
                def both() -> bool:
                    assert responder.poll() == 0
                    return len(answers) == 1

                answers.clear()
                wait_for(caller, both)
                assert answers[0][0] == number
                return answers[0][1]

            assert answered(Calls(caller).call(b"echo", b"hi")) == b"$rpc/echo hi"
            assert answered(Calls(caller).call(b"echo")) == b"$rpc/echo "
            assert answered(Calls(caller).call(b"echo", b"refuse")) == 0x83
            assert caller.session.reason() == b"not today"
            assert answered(Calls(caller).call(b"echo", b"later")) == 0x83
            assert Calls(responder).reply(later[0], b"too late") == 0
            wait_for(responder, lambda: refused == [(0, 0x10)])
            assert answered(Calls(caller).call(b"echo", b"again")) == b"$rpc/echo again"
            assert caller.session.strays == responder.session.strays == 0
            for client in (caller, responder):
                client.disconnect()

        await asyncio.to_thread(work)


async def serve_half(responder: HostClient, count: int) -> None:
    for _ in range(count):
        call = await responder.calls.__anext__()
        n = call.value()
        if not isinstance(n, int):
            await call.refuse(0x99)
        elif n % 2:
            await call.refuse(text=f"{n} is odd")
        else:
            await call.reply(encode(n // 2))


async def test_the_hosts_client_replies_and_refuses(hub: Hub) -> None:
    async with HostClient(HOST, port(hub)) as caller, HostClient(HOST, port(hub)) as responder:
        await responder.serve("half")
        calls = [asyncio.ensure_future(caller.call("half", encode(n))) for n in (8, 7, "x")]
        with pytest.raises(ArgumentError, match="reason_code=16: 0x80 to 0xff"):
            await (await responder.calls.__anext__()).refuse(0x10)
        await serve_half(responder, 2)
        results = await asyncio.gather(*calls[1:], return_exceptions=True)
        assert [getattr(one, "reason_code", one) for one in results] == [0x80, 0x99]
        assert "7 is odd" in str(results[0])
        calls[0].cancel()
        again = asyncio.ensure_future(caller.call("half", encode(8)))
        await serve_half(responder, 1)
        assert decode(await again) == 4


@pytest.mark.needs_micropython
async def test_a_board_serves_a_caller_on_a_host_and_one_on_a_board(hub: Hub) -> None:
    board = asyncio.ensure_future(on_board(hub, "serve", "double", 4))
    await until(lambda: is_served(hub, "double"))
    caller = await Peer.login(hub)
    for arguments in (b"\x00\xff", b""):
        ident = call(caller, "double", arguments)
        got = await caller.next()
        assert (got.correlation, got.payload) == (ident, arguments * 2), got
    assert await on_board(hub, "call", "double", "ab", "x" * 100) == str([b"abab", b"x" * 200])
    assert await board == str([b"\x00\xff", b"", b"ab", b"x" * 100])


@pytest.mark.needs_micropython
async def test_a_board_calls_a_host(hub: Hub) -> None:
    responder = await serving(hub, "sum")
    board = asyncio.ensure_future(on_board(hub, "call", "sum", "1+2", "3+4"))
    for sum_ in (b"3", b"7"):
        reply(responder, (await asked(responder)).id, sum_)
    assert await board == "[b'3', b'7']"
    assert await on_board(hub, "call", "nobody", "x") == str([(0x10, b"there is no responder for 'nobody'")])
    responder.abort()


@pytest.mark.parametrize("synchronized", [True, False])
async def test_a_board_sets_its_clock_from_the_hub(
    synchronized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clocks, "synchronized", lambda clocks: synchronized)
    monkeypatch.setattr(Clocks, "wall", lambda clocks: 1795437296500000000)
    async with hub_of(config(tmp_path)) as hub:
        path = [mpy.SDK, mpy.BOARD_PORT]
        script = BOARD.with_name("hub_time.py")
        done = await asyncio.to_thread(run_unix, script, str(port(hub)), path=path, timeout=100)
    first = "(2026, 11, 23, 0, 12, 34, 56, 500000)" if synchronized else "131"
    assert done.stdout == f"[{first}, 'others', 'others']\n[{first}]\n"
