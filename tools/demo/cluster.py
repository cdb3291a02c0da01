"""`./run demo --cluster`: boards publish to three hubs on one PostgreSQL while the leader is killed.

PostgreSQL has a synchronous standby. Two boards publish over FMQ and know all three hubs. The leader is killed three
times and started again, and PostgreSQL's primary is killed once, so that its standby takes over. A consumer group reads
what the boards publish. Finally each acknowledged message must be stored exactly once, in its board's order.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from headwater_host.client.fmq import Client, ConnectionOptions, Message, decode
from headwater_host.errors import NotConnectedError
from tools.broker import HOST, free_port
from tools.demo.boards import DemoBoard, Record
from tools.demo.process import DemoError, Headwater, progress, say, wait_until_done
from tools.postgres import PostgreSql

_HUBS = 3
_BOARDS = ("b1", "b2")
_TOPIC = "headwater/+/telemetry"
#: Seconds without a lease's renewal after which another hub leads.
_LEASE = 2
#: Seconds within which another hub leads, on a machine that is busy with all of this.
_PATIENCE = 60.0
#: When the leader is killed, and when PostgreSQL's primary is, as parts of the time.
_KILLS = (0.2, 0.4, 0.8)
_FAILOVER = 0.6

#: A message: board, boot, seq.
Identity = tuple[str, int, int]


class _Hubs:
    """The hubs, and the database that tells which of them leads."""

    def __init__(self, out: Path, stack: ExitStack) -> None:
        self._out = out
        self._stack = stack
        self.servers = [PostgreSql(port=free_port()) for _ in range(2)]
        for server in self.servers:
            stack.callback(server.remove)
        primary, standby = self.servers
        primary.start()
        standby.follow(primary, "second")
        primary.require("second")
        self.ports = [free_port() for _ in range(_HUBS)]
        self._running: dict[int, Headwater] = {}
        self._starts = 0
        for port in self.ports:
            self.start(port)

    def start(self, port: int) -> None:
        """Start the hub of a port."""
        places = ",".join(f"{HOST}:{server.port}" for server in self.servers)
        user, _, database = self.servers[0].url().removeprefix("postgresql://").replace("@", "/").split("/")
        folder = self._out / f"hub-{port}"
        folder.mkdir(exist_ok=True)
        config = folder / "hub.toml"
        config.write_text(
            f'[storage]\npath = "postgresql://{user}@{places}/{database}?target_session_attrs=read-write"\n'
            f'[cluster]\nadvertise = "{HOST}:{port}"\nlease = {_LEASE}\nstandby = "required"\n'
            f'[[listener]]\nhost = "{HOST}"\nport = {port}\n'
        )
        self._starts += 1
        hub = Headwater(folder / f"hub-{self._starts}.log", "hub", "--config", str(config))
        self._running[port] = self._stack.enter_context(hub)
        hub.wait_for("listening on", _PATIENCE)

    def wait_for_leader(self) -> None:
        """Create the groups, as soon as a hub leads."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                asyncio.run(_subscribe(self.ports))
                return
            except NotConnectedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def leader(self) -> int:
        """Return the port of the hub that leads."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            holder = self.servers[0].sql("SELECT holder FROM leader")
            for port in self.ports:
                if f":{port}" in holder:
                    return port
            time.sleep(0.05)
        raise DemoError("no hub leads")

    def kill_leader(self) -> None:
        """Kill the leader, wait until another hub leads, and start the killed one again."""
        port = self.leader()
        say(f"the leader, on port {port}, is killed")
        began = time.monotonic()
        self._running[port].process.kill()
        self._running[port].process.wait()
        deadline = began + _PATIENCE
        while self.leader() == port:
            if time.monotonic() > deadline:
                raise DemoError("no other hub took the lead")
            time.sleep(0.02)
        say(f"the hub on port {self.leader()} leads after {time.monotonic() - began:.1f} s")
        self.start(port)

    def fail_over(self) -> None:
        """Kill PostgreSQL's primary, promote its standby, and make the old primary the standby."""
        primary, standby = self.servers
        say("PostgreSQL's primary is killed, and its standby promoted")
        primary.kill()
        standby.promote()
        self.servers.reverse()
        primary.follow(standby, "first")
        standby.require("first")
        say("PostgreSQL has a synchronous standby again")


def _options(ports: list[int]) -> ConnectionOptions:
    return ConnectionOptions(more_servers=[(HOST, port) for port in ports[1:]])


async def _subscribe(ports: list[int]) -> None:
    """Create the groups, which get everything from now on."""
    async with Client(HOST, ports[0], identifier="setup", connection=_options(ports)) as client:
        for name in _BOARDS:
            await client.register(f"headwater/{name}/telemetry")
        for group in ("live", "audit"):
            await client.subscribe(_TOPIC, group=group)


def _identity(message: Message) -> Identity:
    values = decode(message.payload)
    return values["board"], values["boot"], values["seq"]


async def _consume(ports: list[int], group: str, wanted: set[Identity], seen: list[Identity]) -> None:
    """Consume until all wanted messages have come, or nothing comes for a while."""
    async with Client(
        HOST, ports[0], identifier=f"consumer-{group}", connection=_options(ports), reconnect=True
    ) as client:
        await client.consume(await client.subscribe(_TOPIC, group=group), window=64, need_ack=True)
        left = set(wanted)
        while left:
            try:
                message = await asyncio.wait_for(client.messages.__anext__(), _PATIENCE / 3)
            except asyncio.TimeoutError:
                return
            seen.append(_identity(message))
            left.discard(seen[-1])
            await message.ack()


def _verdict(records: dict[str, Record], live: list[Identity], stored: list[Identity]) -> list[str]:
    """List what is wrong: lost, doubled or reordered messages."""
    acknowledged = {(name, *key) for name, record in records.items() for key in record.acknowledged}
    wrong = [f"{name}: nothing was acknowledged" for name in records if not records[name].acknowledged]
    for what, found in (("the group has not received", live), ("the hubs have not stored", stored)):
        lost = sorted(acknowledged - set(found))
        if lost:
            wrong.append(f"{what} {len(lost)} acknowledged messages, the first {lost[0]}")
    doubled = [identity for identity, count in Counter(stored).items() if count > 1]
    if doubled:
        wrong.append(f"{len(doubled)} messages are stored more than once, the first {min(doubled)}")
    for name in records:
        # A message at QoS 0 may overtake a retransmitted one.
        order = [identity for identity in stored if identity[0] == name and identity in acknowledged]
        if order != sorted(order):
            wrong.append(f"{name}: its messages are not stored in its order")
    return wrong


def run(out: Path, seconds: float, period_ms: int) -> int:
    """Run the demo in the directory `out` and return the exit status."""
    with ExitStack() as stack:
        hubs = _Hubs(out, stack)
        say(f"PostgreSQL has a synchronous standby; hubs listen on ports {', '.join(map(str, hubs.ports))}")
        hubs.wait_for_leader()
        began = time.monotonic()
        boards: dict[str, DemoBoard] = {}
        for name in _BOARDS:
            servers = [[HOST, port] for port in hubs.ports]
            board = boards[name] = DemoBoard(
                name,
                out / name,
                {"servers": servers, "protocol": "fmq", "send_record": False},
                period_ms=period_ms,
            )
            stack.callback(board.board.close)
            board.set_time(seconds)
            board.board.start()
            say(f"{name}: MicroPython starts, {board.what}")
        with progress(boards):
            faults = [(part, hubs.kill_leader) for part in _KILLS] + [(_FAILOVER, hubs.fail_over)]
            for part, fault in sorted(faults, key=lambda one: one[0]):
                time.sleep(max(0.0, began + part * seconds - time.monotonic()))
                fault()
            wait_until_done(boards, seconds + _PATIENCE)
        say("all messages of all boards are acknowledged; comparing them with what the hubs have")
        records = {name: board.record() for name, board in boards.items()}
        acknowledged = {(name, *key) for name, record in records.items() for key in record.acknowledged}
        live: list[Identity] = []
        stored: list[Identity] = []
        for group, seen in (("live", live), ("audit", stored)):
            asyncio.run(_consume(hubs.ports, group, acknowledged, seen))
    wrong = _verdict(records, live, stored)
    lines = [f"WRONG: {line}" for line in wrong]
    if not wrong:
        lines = [
            f"{len(acknowledged)} messages of {len(boards)} boards were acknowledged over {len(_KILLS)} killed leaders "
            "and a failover of PostgreSQL; none is lost, doubled or reordered"
        ]
    (out / "report.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print()
    for line in lines:
        say(line)
    say(f"report: {out / 'report.txt'}")
    return 1 if wrong else 0
