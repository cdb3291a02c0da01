"""How a connection of the host's FMQ client comes not to be, or ends: who is refused, who breaks the protocol, who
gives up waiting."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq import spec
from headwater_host.client.fmq import (
    Client,
    ConnectionOptions,
    Limits,
    Reconnect,
    SessionOptions,
    Tls,
    Will,
    encode,
)
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    ConnectRefusedError,
    DisconnectedError,
    FmqConsumerError,
    NotConnectedError,
    ProtocolError,
    QueueFullError,
    ReentrantError,
    SubscribeError,
    TimedOutError,
    TlsError,
)
from headwater_host.fmq.kinds import DateTime
from headwater_host.hub.config import Listener
from tests.certificates import Pki
from tests.host.client_options import grouped
from tests.host.hub_client import config, hub_of, new_id, replace, until
from tests.host.test_hub_users import cheap
from tests.interop.fmq_peers import PROCESS, SECONDS, Line, client, scripted
from tests.rows import each_row

QUICK = Reconnect(first=0.001, longest=0.01)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 4 * SECONDS))


async def first(c: Client) -> Any:
    return await asyncio.wait_for(c.messages.__anext__(), SECONDS)


# -- who is let in -----------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_for_good(tmp_path: Path) -> None:
    async def main() -> None:
        settings = replace(config(tmp_path), users={"ann": cheap(b"secret")})
        async with hub_of(settings) as hub:
            host, port = hub.addresses[0]
            async with Client(f"fmq://ann:secret@{host}:{port}", timeout=SECONDS) as c:
                await c.publish("t", b"", 1)
            for user, password in (("ann", "Xyzzy"), ("bob", "Xyzzy")):
                with pytest.raises(ConnectRefusedError) as refused:
                    await client(hub, username=user, password=password).__aenter__()
                assert refused.value.return_code == 0x86
                assert password not in str(refused.value)
            # With a policy that gives up there is one attempt.
            given_up = client(
                hub,
                username="ann",
                password="no",
                reconnect=Reconnect(first=0.001, at_start=True, refused=None),
            )
            with pytest.raises(ConnectRefusedError):
                await given_up.__aenter__()

    run(main())


def test_tls(tmp_path: Path) -> None:
    pki = Pki(tmp_path)

    async def main() -> None:
        settings = replace(
            config(tmp_path), listeners=(Listener(port=0, cert=pki.server.cert, key=pki.server.key),)
        )
        async with hub_of(settings) as hub:
            port = hub.addresses[0][1]
            async with Client(f"fmqs://localhost:{port}", tls=Tls(ca=pki.ca.cert), timeout=SECONDS) as c:
                await c.subscribe("t")
                await c.publish("t", bytes(300_000), 2)
                assert (await first(c)).payload == bytes(300_000)
            with pytest.raises(TlsError):
                await Client("localhost", port, tls=True, timeout=SECONDS).__aenter__()
            # Who speaks plainly to a hub that does not.
            with pytest.raises(NotConnectedError):
                await Client("localhost", port, timeout=SECONDS).__aenter__()

    run(main())


def test_a_second_connection_takes_the_session_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub, client(hub, "same") as old:
            waiting = asyncio.create_task(first(old))
            async with client(hub, "same") as new:
                with pytest.raises(DisconnectedError) as over:
                    await waiting
                assert over.value.reason_code == 0x8E
                with pytest.raises(DisconnectedError):
                    await old.publish("t", b"", 1)
                await new.publish("t", b"", 1)

    run(main())


def test_the_will_is_published_when_the_connection_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub, client(hub) as c:
            await c.subscribe("wills")
            async with client(hub, "polite", will=Will("wills", b"polite", 1)):
                pass
            async with client(hub, "rude", will=Will("wills", b"rude" * 10_000, 1, retain=True)) as rude:
                assert rude.connection is not None
                assert rude.connection.transport is not None
                rude.connection.transport.abort()
                with pytest.raises(NotConnectedError):
                    await first(rude)
            assert (await first(c)).payload == b"rude" * 10_000

    run(main())


# -- who is no hub -----------------------------------------------------------------------------------------------------


async def hangs_up(line: Line) -> None:
    await line.frame()


async def hangs_up_at_once(line: Line) -> None:
    pass


async def says_nothing(line: Line) -> None:
    await line.ended()


async def says_a_little(line: Line) -> None:
    _, ident = await line.frame()
    line.writer.write(bytes((spec.ACK << 4,)) + ident[:5])
    await line.ended()


@pytest.mark.parametrize(
    "script, error, timeout",
    [
        (hangs_up, NotConnectedError, SECONDS),
        (hangs_up_at_once, NotConnectedError, SECONDS),
        (says_nothing, TimedOutError, 0.2),
        (says_a_little, TimedOutError, 0.2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("tls", [None, True], ids=["plain", "tls"])
def test_a_hub_that_is_gone_or_silent_during_the_handshake(
    script: Callable[[Line], Awaitable[None]], error: type[ClientError], timeout: float, tls: bool | None
) -> None:
    async def main() -> None:
        if tls:
            # There is no TLS at the other end: the handshake is what it leaves, or does not answer.
            async def answer(line: Line) -> None:
                if script in (hangs_up, hangs_up_at_once):
                    await line.reader.read(5)
                else:
                    await line.ended()
        else:
            answer = script  # type: ignore[assignment]  # the same shape
        async with scripted(answer) as where:
            with pytest.raises(error):
                await client(where, timeout=timeout, tls=tls).__aenter__()

    run(main())


def frame_of(kind: int, flags: int, ident: bytes, body: bytes) -> bytes:
    n = len(body)
    assert n < 4096
    length = bytes((n,)) if n < 16 else bytes((16 | n & 15, n >> 4))
    return bytes((kind << 4 | flags,)) + ident + length + body


PUBLISHED = new_id(spec.PUBLISH, PROCESS)
TEXT = encode("t")
#: What no hub may say, once AUTH is accepted.
HOSTILE = {
    "type 4": b"\x40" + PUBLISHED + b"\x00",
    "QoS 3": frame_of(spec.PUBLISH, 6, PUBLISHED, TEXT + b"\xd0"),
    "flag": frame_of(spec.ACK, 1, PUBLISHED, b""),
    "no id": b"\x30\xff" + bytes(20),
    "no topic": frame_of(spec.PUBLISH, 0, PUBLISHED, b""),
    "no tags": frame_of(spec.PUBLISH, 0, PUBLISHED, TEXT),
    "a number of tags": frame_of(spec.PUBLISH, 0, PUBLISHED, TEXT + b"\xd1\xff"),
    "not UTF-8": frame_of(spec.PUBLISH, 0, PUBLISHED, b"\x11\x01\xff\xd0"),
    "five bytes of length": b"\x30" + PUBLISHED + b"\x51" + bytes(5),
    "another AUTH": frame_of(spec.AUTH, 0, new_id(spec.AUTH), b""),
    "REGISTER": frame_of(spec.REGISTER, 0, new_id(spec.REGISTER), TEXT),
    "no correlation": frame_of(spec.CONSUMERESP, 0, PUBLISHED, b"\x00" + TEXT + b"\xd0"),
    "a code above 255": frame_of(spec.ACK, 0, PUBLISHED, b"\x32\x00\x01"),
    "something behind": frame_of(spec.UNSUBSCRIBE, 0, PUBLISHED, b"\x31\x01\x00"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "byte by byte"])
def test_what_no_hub_may_say_ends_the_connection(name: str, pieces: bool) -> None:
    async def script(line: Line) -> None:
        await line.accept()
        data = HOSTILE[name]
        for k in range(len(data) if pieces else 1):
            line.writer.write(data[k : k + 1] if pieces else data)
            await line.writer.drain()
        await line.ended()

    async def main() -> None:
        async with scripted(script) as where:
            c = client(where)

            async def use() -> None:
                # It may come together with the answer to AUTH.
                async with c:
                    await first(c)

            with pytest.raises(ProtocolError):
                await use()
            with pytest.raises(ProtocolError):
                await c.publish("t", b"", 1)

    run(main())


def test_what_is_nobodys_is_passed_over() -> None:
    """Answers to what was never asked, messages of no subscription, and a message above the limit."""

    async def script(line: Line) -> None:
        await line.accept()
        line.say(spec.ACK << 4, new_id(spec.REGISTER, PROCESS), 0)
        line.say(spec.ACK << 4, new_id(spec.PUBLISH, PROCESS))
        line.say(spec.PUBREC << 4, new_id(spec.PUBLISH, PROCESS))
        line.say(spec.CONSUMERESP << 4, new_id(spec.PUBLISH), 77, b"t", (), b"nobody's")
        line.say(spec.PUBREL << 4, new_id(spec.PUBLISH))
        line.say(spec.PUBLISH << 4, new_id(spec.PUBLISH), b"t", (), bytes(100_000))
        line.say(spec.PUBLISH << 4, new_id(spec.PUBLISH), 5**30, (), b"by its hash")
        line.say(spec.PUBLISH << 4, new_id(spec.PUBLISH), b"t", (), b"ours")
        await line.ended()

    async def main() -> None:
        async with scripted(script) as where, client(where, limits=Limits(packet_size=1000)) as c:
            assert [((m := await first(c)).topic, m.payload) for _ in range(2)] == [
                ("", b"by its hash"),
                ("t", b"ours"),
            ]
            assert c.session.skipped == 1
            assert c.session.strays >= 4

    run(main())


def test_a_length_that_is_only_claimed_costs_no_memory() -> None:
    async def script(line: Line) -> None:
        await line.accept()
        # 250 MiB of payload are to come, of which a little does.
        head = b"\x30" + new_id(spec.PUBLISH) + b"\x40" + (250 << 16).to_bytes(4, "little")
        line.writer.write(head + TEXT + b"\xd0" + bytes(100_000))
        await line.writer.drain()
        line.writer.close()

    async def main() -> None:
        async with scripted(script) as where, client(where, limits=Limits(packet_size=1 << 30)) as c:
            with pytest.raises(NotConnectedError):
                await first(c)
            assert len(c.session.rx.buf) < 1 << 20

    run(main())


@pytest.mark.parametrize(
    "time", [(1 << 64) - 1, 1 << 62, 1 << 20, 0], ids=["last", "far", "long ago", "never"]
)
def test_a_hub_whose_clock_is_wrong(tmp_path: Path, time: int) -> None:
    """Ids go up whatever the hub says, also over the end of the process."""

    async def script(line: Line) -> None:
        await line.accept(time=encode(DateTime(time)))
        while True:
            head, ident = await line.frame()
            if head >> 4 == spec.PUBLISH:
                seen.append(int.from_bytes(ident[-8:], "little"))
                line.say(spec.ACK << 4, ident)

    seen: list[int] = []

    async def main() -> None:
        async with scripted(script) as where:
            for _ in range(3):
                with SqliteOutbox(tmp_path / "box", "c", protocol="fmq") as box:
                    async with client(where, session=SessionOptions(clean_start=False, store=box)) as c:
                        for _ in range(5):
                            await c.publish("t", b"", 1)
        assert len(seen) == 15
        assert seen == sorted(set(seen))

    run(main())


@pytest.mark.parametrize("process", [1 << 64, 1 << 200], ids=["nine bytes", "too many"])
def test_a_process_number_that_is_too_long(process: int) -> None:
    async def script(line: Line) -> None:
        await line.accept(process=process)
        await line.ended()

    async def main() -> None:
        async with scripted(script) as where:
            with pytest.raises(ProtocolError):
                await client(where).__aenter__()

    run(main())


# -- who does not wait any more ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_request_whose_answer_was_lost_is_repeated_if_that_is_safe(repeatable: bool) -> None:
    """The connection is cut after the request was sent and before its answer."""
    asked: list[int] = []

    async def cut(line: Line) -> None:
        await line.accept()
        asked.append((await line.frame())[0] >> 4)

    async def answer(line: Line) -> None:
        await line.accept()
        head, ident = await line.frame()
        asked.append(head >> 4)
        line.say(spec.ACK << 4, ident, 0)
        await line.ended()

    async def main() -> None:
        connection = ConnectionOptions(keepalive=0)
        async with (
            scripted(cut, answer) as where,
            client(where, connection=connection, reconnect=QUICK) as c,
        ):
            if repeatable:
                await c.register("t")
                assert asked == [spec.REGISTER, spec.REGISTER]
            else:
                with pytest.raises(NotConnectedError):
                    await c.unregister("t")
                assert asked == [spec.UNREGISTER]

    run(main())


def test_every_call_has_an_end_in_time() -> None:
    async def script(line: Line) -> None:
        await line.accept()
        await line.ended()

    async def main() -> None:
        async with scripted(script) as where, client(where, connection=ConnectionOptions(keepalive=0)) as c:
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: c.publish("t", b"", 1, timeout=0.05),
                lambda: c.publish("t", b"", 2, timeout=0.05),
                lambda: c.drain(0.05),
                lambda: c.register("t", timeout=0.05),
                lambda: c.unregister("t", timeout=0.05),
                lambda: c.subscribe("t", timeout=0.05),
                lambda: c.call("t", b"", timeout=0.05),
                lambda: c.consume_once("t", timeout=0.05),
                lambda: c.elect(("::1", 1), 1, timeout=0.05),
                lambda: c.slaves(timeout=0.05),
            ]
            for call in calls:
                with pytest.raises(TimedOutError):
                    await call()

    run(main())


def test_every_call_may_be_cancelled_at_any_of_its_steps(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub, client(hub) as c, client(hub, "server") as server:
            await server.serve("sum")

            async def work() -> None:
                async for call in server.calls:
                    await call.reply(call.arguments)

            working = asyncio.create_task(work())
            news = await c.subscribe("news")
            jobs = await c.subscribe("jobs", group="g")
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: c.publish("jobs", b"x", 1),
                lambda: c.publish("jobs", b"x", 2),
                lambda: c.post("jobs", b"x", 1),
                lambda: c.drain(),
                lambda: c.register("topic", 2),
                lambda: c.subscribe("news"),
                lambda: c.consume(jobs, need_ack=True),
                lambda: c.call("sum", b"1"),
                lambda: c.consume_once("jobs", group="other", need_ack=True),
                lambda: c.messages.__anext__(),
            ]
            for call in calls:
                for steps in range(6):
                    task = asyncio.ensure_future(call())
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait({task})
            # Everything still works, and no answer is mistaken for another's.
            await c.drain()
            assert await asyncio.gather(*(c.call("sum", b"%d" % n) for n in range(20))) == [
                b"%d" % n for n in range(20)
            ]
            await c.unsubscribe(news if news.number else await c.subscribe("news"))
            await c.subscribe("end")
            await c.publish("end", b"", 1)
            while (await first(c)).topic != "end":
                pass
            working.cancel()

    run(main())


@pytest.mark.parametrize("steps", [*range(8), -1], ids=[*map(str, range(8)), "time-out"])
@pytest.mark.parametrize("again", [False, True], ids=["alone", "with another"])
def test_a_subscription_that_nobody_waited_for_is_taken_back(tmp_path: Path, steps: int, again: bool) -> None:
    """Whether the answer comes before the call is given up, with that, or later."""

    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub, client(hub) as c:
            task = asyncio.ensure_future(c.subscribe("news", timeout=0 if steps < 0 else None))
            other = asyncio.ensure_future(c.subscribe("news")) if again else None
            for _ in range(steps):
                await asyncio.sleep(0)
            if steps >= 0:
                task.cancel()
            await asyncio.wait({task})
            known = hub.broker.clients.by_name["c"].subscriptions
            if not task.cancelled() and not task.exception():
                # So fast.
                await c.unsubscribe(task.result())
                return
            # Its answer has come by then.
            await c.register("news")
            await until(lambda: len(known) == again)
            await c.publish("news", b"1", 1)
            if other is not None:
                assert (await first(c)).payload == b"1"
                await c.unsubscribe(await other)
            await c.subscribe("end")
            await c.publish("end", b"", 1)
            assert (await first(c)).topic == "end"

    run(main())


def test_connecting_may_be_cancelled_at_any_of_its_steps(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub:
            c = client(hub, reconnect=QUICK)
            for steps in range(30):
                task = asyncio.ensure_future(c.__aenter__())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():
                    await c.__aexit__(None, None, None)
            async with c:
                await c.publish("t", b"", 1)
                with pytest.raises(ReentrantError):
                    await c.__aenter__()
            with pytest.raises(NotConnectedError):
                await c.publish("t", b"", 1)

    run(main())


# -- what may be asked for ---------------------------------------------------------------------------------------------


@each_row(
    "options",
    [
        {"host": "fmq://"},
        {"host": "http://h"},
        {"host": "fmq://h:0"},
        {"host": "fmq://h:65536"},
        {"host": "fmq://h/topic"},
        {"clean_start": False},
        {"store": "x"},
        {"keepalive": -1},
        {"timeout": 0},
        {"when_full": "drop"},
        {"queued_outgoing": 0},
        {"in_flight": 0},
        {"will": Will("a/#")},
        {"will": Will("a", qos=3)},
        {"will": Will("a", properties={"content_type": "x"})},
        {"identifier": "\ud800"},
        {"password": "\ud800"},
    ],
    ids=str,
)
def test_options_that_lead_nowhere(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError) as wrong:
        Client(**{"host": "h"} | grouped(options))
    assert "password" not in str(wrong.value) or "password" in options


def test_arguments_that_lead_nowhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub, client(hub, limits=Limits(when_full="refuse")) as c:
            jobs = await c.subscribe("jobs", group="g")
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: c.publish("t", b"", 3),
                lambda: c.publish("t", {}),  # type: ignore[arg-type]
                lambda: c.publish("t", b"", tags=["\ud800"]),
                lambda: c.publish("t", b"", tags=[1]),  # type: ignore[list-item]
                lambda: c.subscribe("a/#/b"),
                lambda: c.subscribe("a", condition=7),  # type: ignore[arg-type]
                lambda: c.consume(jobs, window=-1),
                lambda: c.consume(jobs, window=1 << 20, need_ack=True),
                lambda: c.register("t", 0),
                lambda: c.elect(("host.local", 1), 1),
                lambda: c.elect(("::1", 65536), 1),
                lambda: c.elect(("::1", 1), -1),
            ]
            for call in calls:
                with pytest.raises(ArgumentError):
                    await call()
            await c.unsubscribe(jobs)
            with pytest.raises(ArgumentError):
                await c.consume(jobs)

            async def flood() -> None:
                for _ in range(2000):
                    await c.post("t", b"", 1)

            with pytest.raises(QueueFullError):
                await flood()
            await c.drain()

    run(main())


def test_a_subscription_that_is_refused_later_leaves_the_rest_online(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = "b"

    async def answer(line: Line, code: int) -> None:
        await line.accept()
        for number, name in enumerate("abc", 1):
            head, ident = await line.frame()
            while head >> 4 == spec.CONSUME:
                head, ident = await line.frame()
            assert head >> 4 == spec.SUBSCRIBE
            if code and name == refused:
                line.say(spec.ACK << 4, ident, code, b"not any more")
            else:
                line.say(spec.ACK << 4, ident, 0, PROCESS << 32 | number)

    lose = asyncio.Event()

    async def first(line: Line) -> None:
        await answer(line, 0)
        await lose.wait()

    async def later(line: Line) -> None:
        await answer(line, 0x87)
        await line.ended()

    async def main() -> None:
        async with scripted(first, later) as where:
            policy = Reconnect(first=0.01, longest=0.02)
            async with client(where, reconnect=policy) as c:
                await c.subscribe("a")
                await c.consume(await c.subscribe("b", group="g"))
                await c.subscribe("c")
                reported: list[SubscribeError] = []
                online = asyncio.Event()
                c.on_subscription_refused = reported.append
                c.on_connection = lambda error: None if error else online.set()
                lose.set()
                await asyncio.wait_for(online.wait(), SECONDS)
                assert c.connected
                assert [error.topic for error in reported] == [refused]
                assert "refused the subscription to 'b'" in caplog.text
                # Its consumer has ended, where its messages would be.
                with pytest.raises(FmqConsumerError, match="not any more") as ended:
                    await asyncio.wait_for(c.messages.__anext__(), SECONDS)
                assert (ended.value.topic, ended.value.reason_code) == (refused, 0x87)

    run(main())
