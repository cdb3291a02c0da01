"""Run one measurement of one client on MicroPython and print it as one line of JSON.

    micropython run.py '{"client": "headwater", "task": "publish", ...}'

`client` names a module `bench_CLIENT` beside this file with a class `Bench` (`common.Base`), which gets `host`,
`port`, `qos` and `window`. `task` is `publish` or `receive`. With `queued`, the broker has stored that many
messages and the client does not subscribe. `measure` is

- `rate`: messages over at least `ms` milliseconds (`queued`: over all but the last of the stored messages);
- `heap`: heap bytes left by multiples of `messages` messages, with collection switched off;
- `size`: the heap held once imported and connected, and the files that were loaded.
"""

import gc
import json
import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0])

# Maximum time without a message.
STALL_US = 30000000
WARM_UP = 32
# Minimum time of a step, so that reading the clock does not matter.
STEP_US = 10000
# Number of stored messages left unread, so that no client waits for missing ones.
LEFT = 400


class StalledError(Exception):
    """No message arrived for STALL_US."""


def since(begin):
    return time.ticks_diff(time.ticks_us(), begin)


def pump(bench, count):
    """Receive until `count` messages have arrived."""
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
    """Measure the heap of many messages minus that of few, which excludes the harness."""
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
    # connect imports the client, so the harness's own heap does not count.
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
