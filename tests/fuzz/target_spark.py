"""Targets: MQTT packets, decoded column-wise for Spark, against the core.

An input is frames: the length of each, one byte, in front of it.
"""

from collections.abc import Callable

from tests.spark.test_mqtt import decode_all, of_core


def target(level: int) -> Callable[[bytes], None]:
    """The decoder of a version of MQTT."""

    def run(data: bytes) -> None:
        frames = []
        at = 0
        while at < len(data):
            end = at + 1 + data[at]
            frames.append(data[at + 1 : end])
            at = end
        assert decode_all(frames, level) == [of_core(frame, level) for frame in frames]

    return run
