"""Run one measurement: `python -m tools.bench.hosts JOB`, with `job.Job` as JSON.

Prints `ready` when messages may be sent to it, then the figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tools.bench.hosts import aio, sync
from tools.bench.hosts.job import Clock, Incoming, Job, Outgoing
from tools.toolchain import CACHE

CLIENTS: dict[str, type[sync.Bench] | type[aio.AsyncBench]] = {
    "floor": sync.Floor,
    "blocks": sync.Blocks,
    "headwater": aio.Headwater,
    "pymosquitto": sync.Pymosquitto,
    "mqttium": aio.Mqttium,
    "gmqtt": aio.Gmqtt,
    "chumicro": sync.Chumicro,
    "paho": sync.Paho,
    "aiomqtt": aio.Aiomqtt,
    "amqtt": aio.Amqtt,
}


def _blocking(bench: sync.Bench, job: Job, clock: Clock) -> int:
    bench.connect()
    clock.start()
    print("ready", flush=True)
    if job.task == "receive":
        incoming = Incoming(job.messages, clock)
        bench.receive(incoming)
        incoming.check()
        count = job.messages
    else:
        outgoing = Outgoing(job.ms)
        bench.publish(outgoing)
        clock.stop()
        count = outgoing.count
    bench.close()
    return count


async def _asyncio(bench: aio.AsyncBench, job: Job, clock: Clock) -> int:
    await bench.connect()
    clock.start()
    print("ready", flush=True)
    if job.task == "receive":
        incoming = Incoming(job.messages, clock)
        await bench.receive(incoming)
        incoming.check()
        count = job.messages
    else:
        outgoing = Outgoing(job.ms)
        await bench.publish(outgoing)
        clock.stop()
        count = outgoing.count
    await bench.close()
    return count


def main() -> None:
    """Run the measurement."""
    job = Job(**json.loads(sys.argv[1]))
    os.sched_setaffinity(0, {job.cpu})
    # At the end: peers install modules called config and tests.
    sys.path.append(str(CACHE / "peers"))
    clock = Clock()
    bench = CLIENTS[job.client](job)
    count = (
        asyncio.run(_asyncio(bench, job, clock))
        if isinstance(bench, aio.AsyncBench)
        else _blocking(bench, job, clock)
    )
    print(json.dumps({"messages": count, "seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds}))


if __name__ == "__main__":
    main()
