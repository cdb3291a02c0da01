"""Operations that allocate, each in its own way, and some that do not: what the prover has to tell apart."""

import struct

from prove import prove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Thing:
    def __init__(self) -> None:
        self.value = 0
        self.buffer = bytearray(64)
        self.view = memoryview(self.buffer)
        self.bound = self.method

    def method(self) -> None:
        self.value = 1


thing = Thing()
big = [1 << 62]
half = [0.5]


def nothing() -> None:
    pass


def index_and_pack() -> None:
    thing.buffer[3] = thing.view[4]
    struct.pack_into(">H", thing.buffer, 8, 513)


def assign_slice() -> None:
    thing.view[0:2] = b"ab"


def call_bound_once() -> None:
    thing.bound()


def make_tuple() -> object:
    return (thing.value, thing)


def slice_view() -> object:
    return thing.view[1:3]


def slice_bytes() -> bool:
    return thing.buffer[1:3] == b"ab"


def bind_method() -> object:
    return thing.method


def make_closure() -> "Callable[[], int]":
    value = thing.value
    return lambda: value


def make_generator() -> "Iterator[int]":
    yield thing.value


def big_integer() -> None:
    big[0] = (big[0] + 1) & (1 << 62 | 0xFF)


def use_float() -> None:
    half[0] = half[0] + 1.5


def raise_with_text() -> None:
    try:
        raise ValueError("text", thing.value)
    except ValueError:
        pass


def unpack() -> object:
    return struct.unpack_from(">H", thing.buffer, 8)


def hide_memory_error() -> None:
    try:
        bytearray(100)
    except MemoryError:
        pass


def large_frame() -> int:
    a = b = c = d = e = f = g = h = i = j = k = m = thing.value
    return a + b + c + d + e + f + g + h + i + j + k + m


for operation in (
    nothing,
    index_and_pack,
    assign_slice,
    call_bound_once,
    make_tuple,
    slice_view,
    slice_bytes,
    bind_method,
    make_closure,
    make_generator,
    big_integer,
    use_float,
    raise_with_text,
    unpack,
    hide_memory_error,
    large_frame,
):
    prove(operation.__name__, operation)
