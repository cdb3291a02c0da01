"""Measure how far a slave is behind: ``python -m tests.host.hub_lag --rate 10000 --seconds 20``.

Leader and slave are processes. A third one publishes at QoS 1 with a constant rate, and asks both for their last synced
change ten times a second.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from headwater.fmq import spec
from headwater_host.client.fmq import Client
from headwater_host.hub import frames
from headwater_host.hub.replication.administration import REPLICATION
from tests.host.command import HEADWATER, environment
from tests.host.hub_client import new_id
from tests.host.hub_sites import free_ports
from tests.host.test_hub_site_commands import CONFIG
from tools.postgres import PostgreSql

#: Messages that are written at once.
BURST = 100


async def publish(port: int, rate: int, seconds: float, size: int) -> tuple[int, int]:
    """Publish; return how many messages were sent, and how many bytes of answers came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frames.framed(spec.AUTH << 4, new_id(spec.AUTH), b""))
    answers = 0

    async def read() -> None:
        nonlocal answers
        while data := await reader.read(1 << 16):
            answers += len(data)

    reading = asyncio.ensure_future(read())
    body = frames.message("t", (), os.urandom(size))
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        writer.write(b"".join(frames.publish(new_id(spec.PUBLISH), body, 1) for _ in range(BURST)))
        await writer.drain()
        sent += BURST
        await asyncio.sleep(max(began + sent / rate - time.monotonic(), 0))
    await asyncio.sleep(1)
    reading.cancel()
    writer.close()
    return sent, answers


async def ask(client: Client) -> int:
    return int(json.loads(await client.call(REPLICATION, b"{}"))["seq"])


async def measure(ports: dict[str, int], rate: int, seconds: float, size: int) -> dict[str, object]:
    """Return the lags in seconds: how long ago the leader had what the slave has."""
    async with (
        Client("127.0.0.1", ports["a"], identifier="$slave/x", timeout=60) as leader,
        Client("127.0.0.1", ports["b"], identifier="$slave/y", timeout=60) as slave,
    ):
        publishing = asyncio.ensure_future(publish(ports["a"], rate, seconds, size))
        seen: list[tuple[float, int]] = []
        lags: list[float] = []
        while not publishing.done():
            seen.append((time.monotonic(), await ask(leader)))
            behind = await ask(slave)
            now = time.monotonic()
            # The slave has everything that the leader had at this time.
            had = max((at for at, seq in seen if seq <= behind), default=seen[0][0])
            newer = min((at for at, seq in seen if seq > behind), default=now)
            lags.append(now - max(had, newer) if newer < now else 0.0)
            await asyncio.sleep(0.1)
        sent, _ = await publishing
    return {
        "messages/s": round(sent / seconds),
        "stored": seen[-1][1],
        "median lag (s)": round(statistics.median(lags), 3),
        "maximum lag (s)": round(max(lags), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--sync", type=int, default=1)
    parser.add_argument("--postgresql", action="store_true", help="The leader's storage is PostgreSQL")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sync = 0 if args.postgresql else args.sync
        ports = dict(zip("abc", free_ports(3), strict=True))
        running = []
        for hub in "ab":
            text = CONFIG.format(name=hub, port=ports[hub], **ports)
            text = text.replace('leader = "a"', f'leader = "a"\nsync = {sync}')
            if args.postgresql and hub == "a":
                server = PostgreSql()
                stack.callback(server.remove)
                server.start()
                text = text.replace('"a.db"', f'"{server.url()}"')
                text += f'\n[cluster]\nadvertise = "127.0.0.1:{ports["a"]}"\nstandby = "none"\n'
            (folder / f"{hub}.toml").write_text(text)
            command = [*HEADWATER, "hub", "--config", f"{hub}.toml"]
            running.append(
                subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.DEVNULL)
            )
        try:
            time.sleep(3)
            print(asyncio.run(measure(ports, args.rate, args.seconds, args.size)))
        finally:
            for process in running:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
