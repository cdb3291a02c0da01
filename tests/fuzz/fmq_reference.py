"""FMQ's frames, read in another way than the core's: in one go, into Python's values. For tests only."""

from collections.abc import Callable, Iterator
from typing import Any

from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import MalformedValueError, decode_at

#: Type, flags, message id, fields.
Meaning = tuple[int, int, bytes, list[Any]]

_FLAGS: dict[int, set[int]] = {
    1: {0, 1},
    3: {0, 1, 2, 3, 4, 5, 10, 11, 12, 13},
    10: {0, 1, 2, 3},
    13: {0, 1, 3},
}
_BODILESS = {5, 6, 7, 12}


class MalformedError(Exception):
    """No frame begins like this."""


class _MoreError(Exception):
    """There is not enough of it."""


def _need(condition: bool) -> None:
    if not condition:
        raise MalformedError


class _Body:
    """What is left of a body."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    def left(self) -> bytes:
        return self.data[self.at :]

    def value(self) -> Any:
        try:
            value, self.at = decode_at(self.data, self.at, len(self.data), depth=1)
        except MalformedValueError as error:
            raise MalformedError from error
        return value

    def a(self, *types: type) -> Any:
        value = self.value()
        _need(type(value) in types)
        return value

    def text(self) -> Any:
        return self.a(str)

    def number(self, most: int | None = None) -> Any:
        value = self.a(int)
        _need(value >= 0 and (most is None or value <= most))
        return value

    def topic(self, *others: type) -> Any:
        start = self.at
        value = self.a(str, int, *others)
        if isinstance(value, int):
            # How long it is written counts, not how large it is.
            size = self.at - start - 1
            if self.data[start] >> 4 == 6:
                size -= self.data[start] & 7
            _need(value >= 0 and size <= 16)
        return value

    def tags(self) -> Any:
        found = self.a(list)
        _need(all(type(tag) is str for tag in found))
        return found

    def address(self) -> tuple[int, int, int]:
        data = self.left()
        _need(len(data) > 0)
        version, size = data[0] >> 4, data[0] & 15 or 16
        _need(version == 6 or (version == 4 and size <= 4))
        _need(len(data) >= size + 3)
        self.at += size + 3
        return version, int.from_bytes(data[1 : size + 1], "little"), data[size + 1] | data[size + 2] << 8

    def rest(self) -> bytes:
        data = self.left()
        self.at = len(self.data)
        return data

    def correlation(self) -> Any:
        if self.left()[:1] and self.left()[0] >> 4 == 10:
            try:
                ident = _ident(self.left())
            except _MoreError as more:
                raise MalformedError from more
            self.at += len(ident)
            return ident
        return self.number()


def _ident(data: bytes) -> bytes:
    """The message id that ``data`` begins with."""
    if not data:
        raise _MoreError
    process = data[0] & 15
    _need(process + 4 <= 18)
    if len(data) < process + 2:
        raise _MoreError
    time = process + 2 + (data[process + 1] >> 4)
    _need(time + 2 <= 18)
    if len(data) <= time:
        raise _MoreError
    size = data[time] & 7 or 8
    _need(data[time] >> 4 == 11 and time + 1 + size <= 18)
    if len(data) < time + 1 + size:
        raise _MoreError
    try:
        decode_at(data, time, time + 1 + size)
    except MalformedValueError as error:
        raise MalformedError from error
    return data[: time + 1 + size]


def _some(body: _Body, least: int, fields: list[Callable[[], Any]]) -> list[Any]:
    """As many of the fields as there are."""
    found: list[Any] = []
    for field in fields:
        if not body.left() and len(found) >= least:
            break
        found.append(field())
    return found


def _answer(body: _Body, asked: int) -> Iterator[Any]:
    if not body.left():
        return
    if asked == 13 and body.left()[0] >> 4 not in (3, 5):
        if body.left()[0] == 0:
            yield body.value()
        else:
            yield body.address()
            yield body.number()
        return
    code = body.number(255)
    yield code
    if code == 0 and asked == 0:
        yield body.number()
        yield body.a(bool)
        yield body.a(DateTime)
    elif code == 0 and asked == 8:
        yield body.number()
    elif code == 0 and asked == 1:
        if body.left():
            found = []
            while body.left():
                found.append(body.address())
            yield found
    elif body.left():
        yield body.text()


def _fields(kind: int, flags: int, asked: int, b: _Body) -> list[Any]:
    if kind == 0:

        def text_or_none() -> Any:
            return b.a(str, type(None))

        def boolean() -> Any:
            return b.a(bool)

        def qos() -> Any:
            return b.number(2)

        auth = [b.text, text_or_none, text_or_none, b.number, boolean, b.text, qos, boolean, b.rest]
        return _some(b, 0, auth)
    if kind == 1:
        return [] if flags else [b.address(), b.address()]
    if kind == 2:
        return _some(b, 1, [b.text, b.number])
    if kind == 3:
        return [b.topic(), b.tags(), b.rest()]
    if kind == 8 or (kind == 10 and flags & 2):
        fields: list[Callable[[], Any]] = [b.topic, b.tags, b.text, b.text]
        return _some(b, 1, fields) if kind == 8 else _some(b, 4, [*fields, b.rest])
    if kind == 9:
        return [b.number()]
    if kind == 10:
        return _some(b, 1, [b.number, b.number])
    if kind == 11:
        return [b.correlation(), b.topic(type(None)), b.tags(), b.rest()]
    if kind == 13:
        return [b.address(), b.number()]
    if kind == 14:
        return list(_answer(b, asked))
    return [b.text()] if kind == 15 else []


def decode(data: bytes, limit: int) -> tuple[Meaning, int] | None:
    """The frame that ``data`` begins with, and its length; None when not all of it is there. Raises MalformedError."""
    try:
        return _decode(data, limit)
    except _MoreError:
        return None


def _decode(data: bytes, limit: int) -> tuple[Meaning, int]:
    if not data:
        raise _MoreError
    kind, flags = data[0] >> 4, data[0] & 15
    _need(kind != 4 and flags in _FLAGS.get(kind, {0}))
    ident = _ident(data[1:])
    at = 1 + len(ident)
    if kind in _BODILESS:
        return (kind, flags, ident, []), at
    if at >= len(data):
        raise _MoreError
    more = data[at] >> 4
    _need(more <= 4)
    if len(data) < at + 1 + more:
        raise _MoreError
    size = int.from_bytes(data[at + 1 : at + 1 + more], "little") << 4 | data[at] & 15
    _need(size <= limit)
    at += 1 + more
    if len(data) < at + size:
        raise _MoreError
    body = _Body(data[at : at + size])
    fields = _fields(kind, flags, ident[0] >> 4, body)
    _need(not body.left())
    return (kind, flags, ident, fields), at + size
