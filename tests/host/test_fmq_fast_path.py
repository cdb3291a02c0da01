"""The host's way through FMQ's session beside the core's: the same tests, and the same outcome for the same bytes."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fmq_hub import TIME
from hypothesis import given, settings
from hypothesis import strategies as st
from pipe import drain

from headwater.fmq import session as core
from headwater.fmq import spec
from headwater.fmq.frames import NO_TAGS, encode_frame
from headwater_host.client.connection import Chunks, take
from headwater_host.client.fmq.fast import FastPath
from headwater_host.client.fmq.ids import HostIdTable
from tests.fuzz import target_fmq_session as target
from tests.fuzz.target_fmq_session import AUTH_ID, SUBSCRIPTION, Watched

PORTABLE = Path(__file__).parents[1] / "portable"
FILES = (
    "test_fmq_session",
    "test_fmq_publishing",
    "test_fmq_receiving",
    "test_fmq_requests",
)


class Fast(core.ClientSession):
    """The core's session with the host's fast path and tables, of the sizes that a test wants."""

    frames: Chunks | None = None

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.fast = FastPath()
        self.take_packets = self.fast.take_frames
        self.requests = HostIdTable(self.requests.places)
        self.taken = HostIdTable(self.taken.places)

    def enqueue(self, topic: Any, payload: Any, flags: int, tags: Any = NO_TAGS) -> int:
        found = self.fast.enqueue(self, self.frames, topic, payload, flags, tags)
        return found or super().enqueue(topic, payload, flags, tags)


def load(name: str) -> Any:
    spec_of = importlib.util.spec_from_file_location(f"fast_{name}", PORTABLE / f"{name}.py")
    assert spec_of is not None
    assert spec_of.loader is not None
    module = importlib.util.module_from_spec(spec_of)
    spec_of.loader.exec_module(module)
    return module


CASES = [
    pytest.param(module, name, id=f"{file}.{name}")
    for file in FILES
    for module in [load(file)]
    for name in sorted(vars(module))
    if name.startswith("test_")
]


@pytest.mark.parametrize("module, name", CASES)
def test_portable_tests_pass_over_the_hosts_path(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    made: list[Fast] = []

    def make(*args: Any, **options: Any) -> Fast:
        made.append(Fast(*args, **options))
        return made[-1]

    monkeypatch.setattr(core, "ClientSession", make)
    if hasattr(module, "ClientSession"):
        monkeypatch.setattr(module, "ClientSession", make)
    getattr(module, name)()
    assert made


def written(head: int, ident: bytes, *values: Any) -> bytes:
    buf = bytearray(400)
    end = encode_frame(buf, 0, len(buf), head, ident, values)
    assert end > 0
    return bytes(buf[:end])


def ident(kind: int, n: int) -> bytes:
    return bytes((kind << 4 | 1, 5, 0)) + TIME[:1] + bytes(7) + bytes((n,))


def frames() -> st.SearchStrategy[bytes]:
    few = st.integers(0, 3)
    text = st.sampled_from([b"t", b"a/b", "é".encode(), b"\xff", b"", b"x" * 70])
    payload = st.sampled_from([b"", b"one", b"!raises", bytes(20), bytes(90)])
    tags = st.sampled_from([(), (b"x",)])
    return st.one_of(
        st.builds(
            lambda f, n, *values: written(spec.PUBLISH << 4 | f, ident(spec.PUBLISH, n), *values),
            st.sampled_from([0, 1, 2, 3, 4, 10, 12]),
            few,
            text,
            tags,
            payload,
        ),
        st.builds(
            lambda n, *values: written(spec.CONSUMERESP << 4, ident(spec.PUBLISH, n), SUBSCRIPTION, *values),
            few,
            st.one_of(st.none(), text),
            tags,
            payload,
        ),
        st.builds(
            lambda kind, of, n: written(kind << 4, ident(of, n)),
            st.sampled_from([spec.ACK, spec.PUBREC, spec.PUBREL, spec.PUBCOMP, spec.PINGREQ]),
            st.sampled_from([spec.PUBLISH, spec.REGISTER, spec.CONSUME]),
            few,
        ),
        st.just(written(spec.ACK << 4, AUTH_ID, 0x8B)),
        st.binary(max_size=12),
    )


def outcome(make: Callable[..., Any], stream: bytes, rx: int, options: int, pieces: list[int]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "ClientSession", make)
        one = Watched(rx, options)
        status = one.feed(stream, pieces)
        end = one.end
        states = sorted(bytes(end.taken.state)), sorted(bytes(end.requests.state))
        return status, one.messages, one.raised, one.out, end.skipped, end.strays, end.duplicates, states


@settings(deadline=None)
@given(
    st.lists(frames(), max_size=12).map(b"".join),
    st.sampled_from(target.RX_SIZES),
    st.integers(0, 15),
    st.sampled_from(target.PIECES),
)
def test_the_same_bytes_have_the_same_outcome(
    stream: bytes, rx: int, options: int, pieces: list[int]
) -> None:
    assert outcome(Fast, stream, rx, options, pieces) == outcome(
        core.ClientSession, stream, rx, options, pieces
    )


def published(make: Callable[..., Any], steps: list[tuple[int, int]]) -> Any:
    """Messages are handed in, and answered in any order with anything: what it says, and what is left."""
    one = make(b"c", 0, False, tx_size=128, outbox_size=256, slots=4, window=2)
    one.connect(0)
    said = drain(one)
    n = int(said[1]) & 15
    auth = said[1 : 1 + n + 11]
    buf = written(spec.ACK << 4, auth, 0, 5, True, TIME)
    chunks: Chunks = []
    if isinstance(one, Fast):
        one.frames = chunks
    out: list[Any] = []
    delivered: list[int] = []
    one.on_delivered = delivered.append
    idents: list[bytes] = []

    def flush() -> None:
        if isinstance(one, Fast):
            take(one, chunks)
            out.append(b"".join(chunks))
            chunks.clear()
        else:
            out.append(drain(one))

    def say(data: bytes) -> int:
        one.rx.window()
        one.rx.view[: len(data)] = data
        return int(one.feed(len(data)))

    statuses = [say(buf)]
    for what, which in steps:
        if what < 2:
            statuses.append(one.publish(b"t", b"%d" % which, what + 1))
            idents.append(bytes(one.ids.ident))
        elif idents:
            kind = (spec.ACK, spec.PUBREC, spec.PUBCOMP)[what - 2]
            statuses.append(say(written(kind << 4, idents[which % len(idents)])))
        flush()
    return statuses, b"".join(out), delivered, one.outbox.count, one.in_flight, one.strays


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=16))
def test_what_is_published_is_answered_alike(steps: list[tuple[int, int]]) -> None:
    assert published(Fast, steps) == published(core.ClientSession, steps)
