"""Bytes on the wire per message, above TCP: all, and in brackets to the server and back from it.

`docs/benchmarks.md` describes the method. Real clients talk to real servers through a counting proxy
(`wires.meter`), except for Kafka, whose requests and responses a library encodes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator

from tools import toolchain
from tools.bench.wires import ours
from tools.bench.wires.message import MESSAGES, as_json, as_map
from tools.bench.wires.meter import COUNT, Cost, costs

#: AMQP joins pending acknowledgements, whose number varies, so it is measured several times.
_ROUNDS = 5
_QOS = (0, 1, 2)

#: One measurement: the bytes of a single message, and of one in a batch for each round.
Costs = tuple[Cost, list[Cost]]
#: By payload and QoS.
Measure = Callable[[bytes, int], Costs]


def _of_ours(protocol: str, port: int) -> Measure:
    def measure(payload: bytes, qos: int) -> Costs:
        one, many = costs(ours.session(protocol, payload, qos), port)
        return one, [many]

    return measure


def _of_amqp(protocol: str, rabbitmq: int, proton: int) -> Measure:
    from tools.bench.wires import amqp

    def measure(payload: bytes, qos: int) -> Costs:
        session, port = amqp.session(protocol, payload, qos), proton if qos == 2 else rabbitmq
        found = [costs(session, port, amqp.WARM) for _ in range(_ROUNDS if qos else 1)]
        if len({one for one, _ in found}) > 1:
            raise ConnectionError(f"the bytes of a single message vary: {found}")
        return found[0][0], [many for _, many in found]

    return measure


def _of_kafka() -> Measure:
    from tools.bench.wires import kafka

    kafka.check()

    def measure(payload: bytes, qos: int) -> Costs:
        one, many = kafka.costs(payload, qos)
        return one, [many]

    return measure


def _singly(cost: Cost) -> str:
    return f"{cost.total:.0f} ({cost.up:.0f}+{cost.down:.0f})" if cost.down else f"{cost.total:.0f}"


def _together(found: list[Cost]) -> str:
    low, high = (f"{pick(cost.total for cost in found):.1f}" for pick in (min, max))
    return low if low == high else f"{low}–{high}"


def _row(message: str, protocol: str, kind: str, payload: bytes, measure: Measure) -> dict[str, str]:
    found = [measure(payload, qos) for qos in _QOS]
    row = {"message": message, "protocol": protocol, "payload": f"{kind}, {len(payload)}"}
    row |= {f"QoS {qos}": _singly(one) for qos, (one, _) in zip(_QOS, found, strict=True)}
    row |= {f"{COUNT} at QoS {qos}": _together(many) for qos, (_, many) in zip(_QOS, found, strict=True)}
    return row


@contextlib.contextmanager
def _measures() -> Iterator[dict[str, Measure]]:
    """Yield every protocol that can be measured here, while its servers run."""
    with contextlib.ExitStack() as stack:
        mosquitto, hub = stack.enter_context(ours.mosquitto()), stack.enter_context(ours.hub())
        found = {name: _of_ours(name, mosquitto) for name in ours.MQTT}
        if importlib.util.find_spec("proton") and toolchain.find("rabbitmq"):
            from tools.bench.wires import amqp

            rabbitmq, proton = stack.enter_context(amqp.rabbitmq()), stack.enter_context(amqp.proton())
            amqp.check(proton)
            found |= {name: _of_amqp(name, rabbitmq, proton) for name in amqp.PROTOCOLS}
        else:
            print("bench: wire: AMQP skipped; it needs python-qpid-proton and RabbitMQ", file=sys.stderr)
        if importlib.util.find_spec("kafka"):
            found["Kafka"] = _of_kafka()
        else:
            print("bench: wire: Kafka skipped; kafka-python is not installed", file=sys.stderr)
        found["FMQ"] = _of_ours("FMQ", hub)
        yield found


def run() -> list[dict[str, str]]:
    """Return a row for each message and protocol, and for FMQ with a Map. Raises BrokerError without mosquitto."""
    rows = []
    with _measures() as measures:
        for message, values in MESSAGES.items():
            rows += [
                _row(message, name, "JSON", as_json(values), measure) for name, measure in measures.items()
            ]
            rows.append(_row(message, "FMQ", "Map", as_map(values), measures["FMQ"]))
    return rows
