"""Runs one measurement of one client on MicroPython, and prints it as one line of JSON.

    micropython run.py '{"client": "headwater", "task": "publish", ...}'

``client`` names a module beside this file, ``bench_CLIENT``, with a class ``Bench`` (``common.Base``); ``host``,
``port``, ``qos`` and ``window`` are for it. ``task`` is ``publish`` or ``receive``; with ``queued`` the client does not
subscribe: a broker has kept so many messages for it. ``measure`` is

- ``rate``: messages over at least ``ms`` milliseconds (``queued``: over all but the last of the kept messages);
- ``heap``: heap bytes that some times ``messages`` messages leave behind, with collection switched off;
- ``size``: the heap that the client holds once imported and connected, and the files it was loaded from.
"""

import gc
import json
import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0])

# How long nothing may come.
STALL_US = 30000000
WARM_UP = 32
# A step of a timed run takes at least this long, so that asking for the time does not count.
STEP_US = 10000
# Of the queued messages so many stay, so that no client waits for more than there are.
LEFT = 400


class StalledError(Exception):
    """Nothing came for STALL_US."""


def since(begin):
    return time.ticks_diff(time.ticks_us(), begin)


def pump(bench, count):
    """Let messages arrive until ``count`` have."""
    begin = time.ticks_us()
    while bench.received < count:
        bench.pump()
        if since(begin) > STALL_US:
            raise StalledError(bench.received)


sent = 0


def publish(bench, n):
    global sent
    bench.publish(n)
    sent += n


def publish_rate(bench, job):
    n = bench.window
    while True:
        begin = time.ticks_us()
        publish(bench, n)
        if since(begin) >= STEP_US:
            break
        n *= 2
    total = 0
    begin = time.ticks_us()
    while True:
        publish(bench, n)
        total += n
        us = since(begin)
        if us >= job["ms"] * 1000:
            return total, us


def receive_rate(bench, job):
    pump(bench, WARM_UP)
    first = bench.received
    begin = time.ticks_us()
    if job["queued"]:
        pump(bench, job["queued"] - LEFT)
        us = since(begin)
    else:
        us = 0
        while us < job["ms"] * 1000:
            pump(bench, bench.received + 500)
            us = since(begin)
    return bench.received - first, us


def receive(bench, n):
    pump(bench, bench.received + n)


def heap(bench, job, do):
    """What many messages use and few do not: what the harness itself uses to begin with does not count."""
    n = job["messages"]
    do(bench, n)
    used = []
    for times in (1, 5):
        gc.collect()
        gc.disable()
        first = sent + bench.received
        before = gc.mem_alloc()
        do(bench, times * n)
        used.append((sent + bench.received - first, gc.mem_alloc() - before))
        gc.enable()
    return used[1][0] - used[0][0], used[1][1] - used[0][1]


def publish_heap(bench, job):
    return heap(bench, job, publish)


def receive_heap(bench, job):
    return heap(bench, job, receive)


WORK = {
    ("publish", "rate"): publish_rate,
    ("receive", "rate"): receive_rate,
    ("publish", "heap"): publish_heap,
    ("receive", "heap"): receive_heap,
}


def main(job):
    bench = __import__("bench_" + job["client"]).Bench(job["qos"], job["window"])
    gc.collect()
    before = gc.mem_alloc()
    # A client is imported by connect: what this harness itself holds does not count.
    bench.connect(job["host"], job["port"], not job["queued"])
    if job["measure"] == "size":
        gc.collect()
        held = gc.mem_alloc() - before
        files = [getattr(module, "__file__", "") for module in sys.modules.values()]
        return {"heap": held, "files": files}
    if job["task"] == "publish":
        bench.prepare_publish()
    elif not job["queued"]:
        bench.subscribe()
    bench.is_timed = job["measure"] == "rate"
    messages, amount = WORK[job["task"], job["measure"]](bench, job)
    bench.check()
    return {"messages": messages, "us" if bench.is_timed else "heap": amount, "sent": sent}


print(json.dumps(main(json.loads(sys.argv[1]))))
