"""Measure and publish at QoS 0, 1 and 2 in turn for a configured time.

`telemetry.json` beside this file configures the board and its peer:

    {"name": "b1", "host": "127.0.0.1", "port": 1883, "period_ms": 20, "seconds": 20}
    {"name": "b2", "host": "127.0.0.1", "port": 1883, "version": 5, "period_ms": 20, "seconds": 20}
    {"name": "b3", "serial": 0, "baud": 460800, "period_ms": 20, "seconds": 20}
    {"name": "b4", "host": "127.0.0.1", "port": 7760, "protocol": "fmq", "period_ms": 20, "seconds": 20}
    {"name": "b5", "servers": [["127.0.0.1", 7760], ["127.0.0.1", 7762]], "protocol": "fmq", ...}

Each message is a JSON object, or an FMQ Map, with the board's identity (`board`, `boot`, `seq`), the time in
microseconds since 1970 (`t`) and the values. With MQTT 5.0 (`"version": 5`) it also has properties. `boot` counts the
starts of this board in `boot.txt`. `sent.jsonl` records published and acknowledged messages for comparison. With
`"send_record": true` the board finally sends this file in segments.
"""

import json
import time

from sampling import sample

from headwater.errors import HeadwaterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.fmq.client import Client as FmqClient
    from headwater.mqtt.client import Client
    from headwater.types import Bytes, Dialer

QUEUE = 64
PAYLOAD = 512
PAUSE_MS = 200
SEGMENT = 512
EXPIRY_S = 3600


def read_settings() -> "dict[str, Any]":
    """Return the settings of `telemetry.json`."""
    with open("telemetry.json") as f:
        settings: dict[str, Any] = json.load(f)
    return settings


def next_boot() -> int:
    """Count this start in a file and return its number."""
    try:
        with open("boot.txt") as f:
            boot = int(f.read()) + 1
    except OSError:
        boot = 1
    with open("boot.txt", "w") as f:
        f.write(str(boot))
    return boot


def dialer(settings: "dict[str, Any]") -> "Dialer":
    """Return a dialer for TCP or the serial line. A board imports only the one it uses."""
    if "serial" in settings:
        from headwater_board.serial import Serial

        return Serial(settings["serial"], settings.get("baud", 115200))
    from headwater_board.tcp import Tcp

    host, port = settings["servers"][0] if "servers" in settings else (settings["host"], settings["port"])
    return Tcp(host, port)


def make_client(settings: "dict[str, Any]") -> "Client | FmqClient":
    """Return a client of the configured protocol. Both have the same interface."""
    if settings.get("protocol") == "fmq":
        from headwater.fmq.client import Client
    elif settings.get("version") == 5:
        from headwater.mqtt.client5 import Client5 as Client  # type: ignore[assignment]  # one name for three classes
    else:
        from headwater.mqtt.client import Client  # type: ignore[assignment]  # one name for three classes
    return Client(
        dialer(settings),
        settings["name"].encode(),
        clean_start=False,
        keep_alive=5,
        response_ms=3000,
        rx_size=512,
        tx_size=1024,
        outbox_size=8192,
        slots=QUEUE,
    )


def make_properties(settings: "dict[str, Any]") -> "Bytes":
    """Return the properties of each message of MQTT 5.0; none for other protocols."""
    if settings.get("version") != 5:
        return b""
    from headwater.mqtt import spec5
    from headwater.mqtt.properties import Properties

    properties = Properties(96)
    properties.add(spec5.CONTENT_TYPE, b"application/json")
    properties.add(spec5.MESSAGE_EXPIRY_INTERVAL, EXPIRY_S)
    properties.add(spec5.USER_PROPERTY, b"board", settings["name"].encode())
    properties.add(spec5.USER_PROPERTY, b"program", b"telemetry.py")
    return properties.block


def as_json(values: "dict[str, Any]") -> bytes:
    """Encode a JSON object."""
    return json.dumps(values).encode()


def map_maker() -> "Callable[[dict[str, Any]], Bytes]":
    """Return a function that encodes an FMQ Map of numbers and strings."""
    from headwater.fmq.numbers import put_float
    from headwater.fmq.spec import MAP
    from headwater.fmq.values import put_count, put_int, put_text

    buf = bytearray(PAYLOAD)
    view = memoryview(buf)

    def as_map(values: "dict[str, Any]") -> "Bytes":
        at = put_count(buf, 0, PAYLOAD, MAP, len(values))
        for name, value in values.items():
            at = put_text(buf, at, PAYLOAD, name.encode())
            if isinstance(value, str):
                at = put_text(buf, at, PAYLOAD, value.encode())
            else:
                at = (put_float if isinstance(value, float) else put_int)(buf, at, PAYLOAD, value)
        return view[:at]

    return as_map


class Telemetry:
    """Publish samples and record what was published and acknowledged."""

    def __init__(
        self,
        client: "Client | FmqClient",
        pack: "Callable[[dict[str, Any]], Bytes]",
        name: str,
        boot: int,
        servers: "list[list[Any]]",
        properties: "Bytes",
    ):
        self.client = client
        self.pack = pack
        self.name = name
        self.boot = boot
        self.servers = servers
        # The arguments of publish after qos: only the client of MQTT 5.0 takes properties.
        self.options = (False, properties) if properties else ()
        self.topic = b"headwater/" + name.encode() + b"/telemetry"
        self.seq = 0
        self.waiting: dict[int, tuple[int, int]] = {}
        self.record = open("sent.jsonl", "a")
        client.on_delivered = self.delivered

    def note(self, seq: int, qos: int, acknowledged: bool) -> None:
        """Record that a message was published or acknowledged."""
        line = {"board": self.name, "boot": self.boot, "seq": seq, "qos": qos, "acknowledged": acknowledged}
        self.record.write(json.dumps(line) + "\n")
        self.record.flush()

    def delivered(self, number: int) -> None:
        """Record the final acknowledgement of a message."""
        # The record does not list its own segments.
        if number in self.waiting:
            seq, qos = self.waiting.pop(number)
            self.note(seq, qos, True)

    def publish(self) -> bool:
        """Measure and publish one message. Returns False if the outbox is full; try again after a poll."""
        values: dict[str, Any] = sample()
        values["board"] = self.name
        values["boot"] = self.boot
        values["seq"] = self.seq
        values["t"] = time.time_ns() // 1000
        qos = self.seq % 3
        number = self.client.publish(self.topic, self.pack(values), qos, *self.options)
        if number < 0 and qos:
            return False
        # Without a connection, a QoS 0 message is lost.
        self.note(self.seq, qos, False)
        if number > 0:
            self.waiting[number] = (self.seq, qos)
        self.seq += 1
        return True

    def run(self, seconds: float, period_ms: int) -> None:
        """Publish every `period_ms` for `seconds`, then wait for the acknowledgements."""
        client = self.client
        begin = time.ticks_ms()
        due = begin
        while time.ticks_diff(time.ticks_ms(), begin) < seconds * 1000 or client.session.outbox.count:
            if not client.connected:
                self.reconnect()
            elif time.ticks_diff(time.ticks_ms(), begin) >= seconds * 1000:
                client.wait(10)
            elif time.ticks_diff(time.ticks_ms(), due) >= 0 and self.publish():
                due = time.ticks_add(due, period_ms)
            else:
                client.wait(max(1, min(period_ms, time.ticks_diff(due, time.ticks_ms()))))

    def send_record(self) -> None:
        """Send `sent.jsonl` in segments, over reconnects, until all of it is acknowledged."""
        from headwater.ibmmq.segments import Segmenter
        from headwater_board.ids import group_ids

        client = self.client
        segmenter = Segmenter(client, bytearray(SEGMENT), group_ids(), format=b"MQSTR")
        with open("sent.jsonl", "rb") as file:
            status = segmenter.begin(b"headwater/" + self.name.encode() + b"/record", file)
            while status == 0 and segmenter.run() < 0:
                if client.connected:
                    raise OSError("the record cannot be sent")
                self.reconnect()
        while client.session.outbox.count:
            if client.connected:
                client.wait(10)
            else:
                self.reconnect()

    def reconnect(self) -> None:
        """Try to connect once. After a failure, pause and choose the next server."""
        try:
            kept = self.client.connect()
            print(self.name, "boot", self.boot, "connected; the session was", "kept" if kept else "new")
        except (OSError, HeadwaterError) as error:
            print(self.name, "boot", self.boot, "not connected:", error)
            if self.servers:
                self.servers.append(self.servers.pop(0))
                dialer: Any = self.client.dialer
                dialer.aim(*self.servers[0])
            time.sleep_ms(PAUSE_MS)


def main() -> None:
    """Run for the configured time."""
    settings = read_settings()
    name = settings["name"]
    pack = map_maker() if settings.get("protocol") == "fmq" else as_json
    servers = settings.get("servers", [])
    board = Telemetry(make_client(settings), pack, name, next_boot(), servers, make_properties(settings))
    print(name, "boot", board.boot, "starts")
    board.run(settings["seconds"], settings["period_ms"])
    if settings.get("send_record"):
        board.send_record()
    board.client.disconnect()
    print(name, "boot", board.boot, "done:", board.seq, "messages")


main()
