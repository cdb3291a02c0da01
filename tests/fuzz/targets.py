"""The table of what is fuzzed. A target takes any bytes, and raises when what they lead to is wrong.

Everything here runs without atheris: ``test_targets.py`` feeds the named seeds, and hypothesis's inputs; ``python -m
tests.fuzz`` lets atheris look for inputs that reach what no input has reached before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import vectors

from tests.fuzz import (
    target_assembly,
    target_buffers,
    target_fmq,
    target_fmq_session,
    target_hub,
    target_ibmmq,
    target_journal,
    target_link,
    target_packets,
    target_sessions,
    target_spark,
)
from tests.fuzz.ends import KINDS

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """``run`` takes an input of up to ``longest`` bytes. ``vectors`` are the files whose ``rows`` are seeds, too, each
    behind ``front``; ``shares`` is the target whose corpus this one has as well."""

    name: str
    run: Callable[[bytes], None]
    longest: int = 400
    vectors: tuple[str, ...] = ()
    rows: tuple[str, ...] = ("packets",)
    front: bytes = b""
    shares: str = ""

    def seeds(self) -> dict[str, bytes]:
        """Named inputs to begin with: those of ``corpus``, and the shared test vectors that are not too long."""
        found = read_corpus(self.shares) | read_corpus(self.name)
        for file in self.vectors:
            content = vectors.load(file)
            for row in (row for section in self.rows for row in content[section]):
                packet = vectors.unhex(row["hex"])
                if len(packet) < self.longest:
                    found[row.get("name", row["hex"])] = self.front + packet
        return found


def read_corpus(name: str) -> dict[str, bytes]:
    """The seeds of ``corpus/NAME.txt``: ``name: hex`` on a line, as in the vectors; # begins a comment."""
    found: dict[str, bytes] = {}
    path = CORPUS / f"{name}.txt"
    if not path.exists():
        return found
    for line in path.read_text().splitlines():
        label, colon, digits = line.rpartition(":")
        if line.startswith("#") or not line.strip():
            continue
        if not colon or label in found:
            raise ValueError(f"{path.name}: {line!r} has no name, or one that is taken")
        found[label] = vectors.unhex(digits)
    return found


_VECTORS = {3: ("mqtt", "mqtt31"), 4: ("mqtt",), 5: ("mqtt5",)}

TARGETS = {
    target.name: target
    for target in (
        Target("packet-3.1", target_packets.packet_3, vectors=_VECTORS[3]),
        Target("packet-3.1.1", target_packets.packet_4, vectors=_VECTORS[4]),
        Target("packet-5.0", target_packets.packet_5, vectors=_VECTORS[5]),
        Target("properties", target_packets.property_block),
        Target("topics", target_packets.topic, longest=64),
        *(
            Target(
                name,
                target_sessions.target(name),
                vectors=_VECTORS[kind.level],
                front=b"\x00\x04",
                shares="session" if kind.level < 5 else "session-5.0",
            )
            for name, kind in KINDS.items()
        ),
        Target("rxbuf", target_buffers.receive_buffer),
        Target("host-rxbuf", target_buffers.growing_receive_buffer, shares="rxbuf"),
        Target("outbox", target_buffers.outbox),
        Target("host-outbox", target_buffers.growing_outbox, shares="outbox"),
        Target("journal", target_journal.journal, longest=600),
        Target("link-frames", target_link.frames, longest=600),
        Target("link-session", target_link.link_session, longest=800),
        Target("link-pair", target_link.link_pair, longest=800),
        Target(
            "fmq-values",
            target_fmq.value,
            vectors=("fmq",),
            rows=("values", "longer_values", "malformed_values"),
            front=b"\x20",
        ),
        Target("fmq-frames", target_fmq.frame, vectors=("fmq",), rows=("frames", "malformed_frames")),
        Target(
            "fmq-client",
            target_fmq_session.session,
            longest=800,
            vectors=("fmq",),
            rows=("frames", "malformed_frames"),
            front=b"\x00\x04",
        ),
        Target(
            "mq-headers",
            target_ibmmq.header,
            longest=440,
            vectors=("mqmde",),
            rows=("vectors", "chains"),
            front=b"\0",
        ),
        Target(
            "mq-chains", target_ibmmq.chain, longest=1000, vectors=("mqmde",), rows=("chains",), front=b"\0"
        ),
        Target("hub-conditions", target_hub.condition, longest=200),
        Target("assembly", target_assembly.assembly),
        *(
            Target(f"spark-{version}", target_spark.mqtt(level), vectors=_VECTORS[level], front=b"\xff")
            for level, version in ((3, "3.1"), (4, "3.1.1"), (5, "5.0"))
        ),
        Target(
            "spark-fmq",
            target_spark.fmq_frames,
            vectors=("fmq",),
            rows=("frames", "malformed_frames"),
            front=b"\xff",
        ),
        Target("spark-mqmde", target_spark.mqmdes, vectors=("mqmde",), rows=("vectors",), front=b"\xff"),
        Target("spark-maps", target_spark.maps),
        Target("spark-objects", target_spark.objects),
    )
}
