"""A board that keeps its connection, and publishes numbers until it is told to stop; ``settings`` says with whom."""

import time

import settings

from headwater.mqtt.keeper import CONNECTING, Keeper
from headwater_board.tcp import Tcp

options = {}
if getattr(settings, "V5", False):
    from headwater.mqtt.client5 import Client5 as Client
    from headwater.mqtt.v5 import ClientV5

    options["version"] = ClientV5(session_expiry=3600)
else:
    from headwater.mqtt.client import Client
if getattr(settings, "TLS", False):
    from headwater_board.tls import Tls

    dialers = [Tls("127.0.0.1", settings.PORT, ca="ca.der")]
else:
    dialers = [Tcp("127.0.0.1", port) for port in getattr(settings, "PORTS", [settings.PORT])]
client = Client(
    dialers[0],
    b"board",
    clean_start=False,
    keep_alive=1,
    response_ms=1000,
    slots=64,
    outbox_size=4096,
    user=getattr(settings, "USER", None),
    password=getattr(settings, "PASSWORD", None),
    **options,
)
keeper = Keeper(
    client,
    dialers,
    first_ms=50,
    longest_ms=200,
    refused_ms=0,
    connect_ms=1500,
    block_ms=30000,
)
stopped: "list[bytes]" = []


def commanded(message: object) -> None:
    payload = message.payload_bytes()
    print("command", payload.decode())
    if payload == b"stop":
        stopped.append(payload)


client.on_message = commanded
keeper.on_online = lambda present: print("online", present)
keeper.on_offline = lambda status: print("offline", status)
keeper.on_answer = lambda topic_filter, code: print("answer", topic_filter, code)
keeper.subscribe(b"commands", 1)
keeper.start()
n = polls = 0
due = time.ticks_ms()
status = 0
while not stopped and status == 0:
    if keeper.state == CONNECTING:
        polls += 1
    status = keeper.wait(10)
    if time.ticks_diff(time.ticks_ms(), due) >= 0:
        due = time.ticks_add(due, 20)
        if keeper.publish(b"numbers", b"%d" % n, 1 + n % 2) < 0:
            break
        n += 1
        if n % 20 == 0:
            print("published", n)
if status:
    print("gave up", status, client.session.return_code)
else:
    print("stopped", keeper.stop(20000), n, polls)
