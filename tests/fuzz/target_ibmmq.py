"""Targets: IBM MQ's headers, one by one and in chains, by the core and by the host, against a reference.

The first byte of an input says in which way the rest is read; 0: as its beginning suggests.
"""

from collections.abc import Callable
from typing import Any

from headwater.errors import E_CODE, E_TOO_LARGE, E_TRUNCATED
from headwater.ibmmq.chain import Chain
from headwater.ibmmq.header import BIG, EBCDIC, LITTLE, Header, sniff
from headwater.ibmmq.text import format_of, put_text, text_of
from headwater_host.mq import structures
from tests.fuzz import ibmmq_reference as reference
from tests.fuzz.guarded import Guarded

BEFORE, BEHIND = b"\xd5\x30", b"\x00MDE \x02"
AT = len(BEFORE)
CCSIDS = (819, 500, 1047, 37, 1140, 1208)
STARTS = (None, "MQHMDE", "MQDEAD  ", "MQXMIT  ", "MQSTR")
NAMES = tuple(structures.LAYOUTS)


def _guarded(data: bytes) -> Guarded:
    buf = Guarded(BEFORE + data + BEHIND)
    buf.start = AT
    buf.end = AT + len(data)
    return buf


def _way(data: bytes, choices: tuple[Any, ...], usual: dict[str, Any]) -> tuple[bytes, bool, int, Any]:
    """What is read, in which order and character set, and as what: ``usual`` says that by StrucId, for an input whose
    first byte is 0."""
    first, data = data[0] if data else 0, data[1:]
    if first:
        one = choices[first // 12 % len(choices)]
        return data, bool(first & 1), CCSIDS[first // 2 % 6], one
    ccsid = 500 if data[:1] > b"\xbf" else 819
    ident = reference.text(data[:4], ccsid)
    return data, data[4:5] == b"\0", ccsid, usual.get(ident, choices[0])


# -- one header --------------------------------------------------------------------------------------------------------


def header(data: bytes) -> None:
    """Any of the headers at the beginning of ``data``."""
    usual = {"MD  ": "MQMD", "XQH ": "MQXQH", "DLH ": "MQDLH", "MDE ": "MQMDE"}
    data, big, ccsid, name = _way(data, NAMES, usual)
    _header(name, data, big, ccsid)
    _sniffed(data)


def _header(name: str, data: bytes, big: bool, ccsid: int) -> None:
    layout = structures.LAYOUTS[name]
    end = AT + len(data)
    h = Header(_guarded(data))
    got = h.look(layout, AT, end, big, ccsid)
    wrong: tuple[Any, ...] | None = None
    fields: dict[str, Any] = {}
    size = 0
    try:
        fields, size = reference.header(name, data, 0, big, ccsid)
    except reference.MalformedError as error:
        wrong = error.args
    if wrong:
        assert got in (E_CODE, E_TRUNCATED), got
        assert (h.reason, h.bad_field, h.bad_at - AT) == wrong
        assert h.end == AT
        assert _refused(lambda: structures.decode(layout, BEFORE + data, AT, big=big, ccsid=ccsid)) == wrong
        # With more behind it, it is as wrong, or was only too short.
        if got == E_CODE:
            again = Header(_guarded(data + bytes(400)))
            assert again.look(layout, AT, end + 400, big, ccsid) == got
            assert (again.bad_field, again.bad_at) == (h.bad_field, h.bad_at)
        return
    assert got == h.end == AT + size
    rows = layout[3]
    said = {}
    for i, (field, _, _, kind, default) in enumerate(rows):
        value = text_of(h, i) if kind == "c" else h.raw(i) if kind == "b" else h.get(i)
        if h.has(i):
            said[field] = value
        else:
            assert value == (bytes(24) if kind == "b" else default)
    assert said == fields
    assert structures.decode(layout, BEFORE + data + BEHIND, AT, big=big, ccsid=ccsid) == fields
    assert structures.encode(layout, fields, big=big, ccsid=ccsid) == data[:size]
    _written(layout, fields, data[:size], big, ccsid)
    for n in {size // 2, size - 1}:
        assert Header(_guarded(data[:n])).look(layout, AT, AT + n, big, ccsid) == E_TRUNCATED


def _refused(call: Callable[[], object]) -> tuple[Any, ...] | None:
    """What the host finds wrong, or None."""
    try:
        call()
    except structures.HeaderError as error:
        return error.reason, error.field, error.offset - AT
    return None


def _written(layout: Any, fields: dict[str, Any], want: bytes, big: bool, ccsid: int) -> None:
    """The core writes what it read, and nothing else."""
    size = len(want)
    if size < layout[2]:
        layout = structures.LAYOUTS["MQMD1"]
    buf = bytearray(b"\xa5" * (size + 5))
    h = Header(buf)
    assert h.begin(layout, AT, big, ccsid) == AT + size
    for i, (field, _, _, kind, _) in enumerate(layout[3]):
        if field in fields:
            value = fields[field]
            write = put_text if kind == "c" else Header.put_raw if kind == "b" else Header.put
            done = write(h, i, value)
            assert done == 0
    assert buf == b"\xa5" * AT + want + b"\xa5" * 3
    assert Header(bytearray(size + 1)).begin(layout, AT, big, ccsid) == E_TOO_LARGE


def _sniffed(data: bytes) -> None:
    """What ``sniff`` says is what a reader finds, but for what is behind the first twelve bytes."""
    got = sniff(_guarded(data), AT, AT + len(data))
    found = 0
    for big, order in ((True, BIG), (False, LITTLE)):
        for ccsid, family in ((819, 0), (500, EBCDIC)):
            try:
                reference.header("MQMDE", data[:12] + bytes(60), 0, big, ccsid)
            except reference.MalformedError:
                continue
            found = order | family
    assert got == (found if len(data) >= 12 else 0)


# -- chains ------------------------------------------------------------------------------------------------------------


def chain(data: bytes) -> None:
    """The headers at the beginning of ``data``."""
    _chain(*_way(data, STARTS, {"MDE ": "MQHMDE", "DLH ": "MQDEAD  "}))


def _chain(data: bytes, big: bool, ccsid: int, given: str | None) -> None:
    want, end, follows = reference.chain(data, 0, big, ccsid, given)
    c = Chain(_guarded(data))
    c.start(AT, AT + len(data), big, ccsid, None if given is None else given.encode())
    found = []
    status = c.next()
    while status > 0:
        h = c.header
        fields = {
            row[0]: text_of(h, i) if row[3] == "c" else h.raw(i) if row[3] == "b" else h.get(i)
            for i, row in enumerate(h.layout[3])
            if h.has(i)
        }
        found.append((structures.name_of(h.layout), h.at - AT, fields))
        assert h.end == c.at
        status = c.next()
    assert found == want
    assert c.next() == status
    if isinstance(end, tuple):
        assert status in (E_CODE, E_TRUNCATED)
        assert (c.header.reason, c.header.bad_field, c.header.bad_at - AT) == end
    else:
        assert status == 0
        assert c.at - AT == end
        assert (format_of(c), c.encoding(), c.ccsid()) == follows
    whole = BEFORE + data
    if isinstance(end, tuple):
        assert _refused(lambda: structures.walk(whole, AT, big=big, ccsid=ccsid, format=given)) == end
    else:
        headers, rest = structures.walk(whole, AT, big=big, ccsid=ccsid, format=given)
        assert [(one.name, one.at - AT, one.fields) for one in headers] == want
        assert (rest.at - AT, tuple(rest[1:])) == (end, follows)
