"""Targets: frames and payloads, decoded column-wise for Spark, against the core, Python's JSON and the CBOR decoder.

An input is frames or payloads: the length of each, one byte, in front of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from headwater.fmq.spec import MAP
from tests.spark import test_fmq, test_maps, test_mqmde, test_mqtt, test_payload

_MAPS = {bytes([MAP << 4 | form]) for form in range(16)}
Decode = Callable[[list[bytes]], Sequence[Any]]


def _target(decode_all: Decode, one_by_one: Decode) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        parts = []
        at = 0
        while at < len(data):
            end = at + 1 + data[at]
            parts.append(data[at + 1 : end])
            at = end
        assert decode_all(parts) == one_by_one(parts)

    return run


def mqtt(level: int) -> Callable[[bytes], None]:
    """Packets of a version of MQTT."""
    return _target(
        lambda frames: test_mqtt.decode_all(frames, level),
        lambda frames: [test_mqtt.of_core(frame, level) for frame in frames],
    )


fmq_frames = _target(test_fmq.decode_all, lambda frames: [test_fmq.of_core(frame) for frame in frames])
maps = _target(test_maps.parsed, test_maps.one_by_one)
mqmdes = _target(
    lambda payloads: test_mqmde.columns([*payloads]),
    lambda payloads: [test_mqmde.core(payload) for payload in payloads],
)


def _objects(payloads: list[bytes]) -> list[str]:
    """Rows of JSON and CBOR, as texts, in which NaN is equal to itself."""
    return [repr(test_payload.clean(row)) for row in test_payload.parse(_not_fmq(payloads))]


def _objects_one_by_one(payloads: list[bytes]) -> list[str]:
    return [repr(test_payload.clean(test_payload.reference(one))) for one in _not_fmq(payloads)]


def _not_fmq(payloads: list[bytes]) -> list[bytes]:
    return [payload for payload in payloads if payload[:1] not in _MAPS]


objects = _target(_objects, _objects_one_by_one)
