"""A board that stays connected to a hub: it publishes numbers, consumes jobs, and goes on until it is told to stop."""

import time

import settings

from headwater.fmq.client import Client
from headwater.fmq.keeper import Keeper
from headwater_board.tcp import Tcp

client = Client(
    Tcp("127.0.0.1", settings.PORT),
    b"board",
    clean_start=False,
    keep_alive=2,
    response_ms=5000,
    slots=32,
    outbox_size=4096,
)
keeper = Keeper(client, first_ms=20, longest_ms=100, connect_ms=5000, block_ms=60000)
stopped: "list[bytes]" = []


def take(f: object) -> None:
    payload = f.payload_bytes()
    print(keeper.topic_of(client.session.source) or f.topic_bytes(), payload)
    if payload == b"stop":
        stopped.append(payload)


client.on_message = take
keeper.on_online = lambda present: print("online", present)
keeper.on_offline = lambda status: print("offline", status)
keeper.on_answer = lambda topic_filter, code: print("answer", topic_filter, code)
keeper.subscribe(b"commands")
keeper.consume(b"jobs", b"workers", window=4)
keeper.start()
n = status = 0
due = time.ticks_ms()
while not stopped and status == 0:
    status = keeper.wait(10)
    if time.ticks_diff(time.ticks_ms(), due) >= 0:
        due = time.ticks_add(due, 10)
        if keeper.publish(b"numbers", b"%d" % n, 1 + n % 2) < 0:
            break
        n += 1
        if n % 20 == 0:
            print("published", n)
print("stopped", keeper.stop(60000), n, keeper.connections)
