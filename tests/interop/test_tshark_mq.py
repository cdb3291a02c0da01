"""tshark, an independent reader, finds in IBM MQ's headers what we put there: both byte orders, ASCII and EBCDIC."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from vectors import load

from headwater_host.mq import transmission
from headwater_host.mq.descriptors import MD, QueueManagerSettings
from headwater_host.mq.structures import LAYOUTS, decode, encode
from tests.interop.mq_capture import Fields, Writer, read
from tests.interop.tshark import colons
from tests.rows import each_row
from tools import toolchain

Row = dict[str, Any]
WRITERS = [Writer(big, ccsid) for big in (False, True) for ccsid in (819, 500)]

_GROUP = {
    "GroupId": "mq.md.groupid",
    "MsgSeqNumber": "mq.md.msgseqnumber",
    "Offset": "mq.md.offset",
    "MsgFlags": "mq.md.msgflags",
    "OriginalLength": "mq.md.origlength",
}
#: tshark's name of each structure, and where in it each of our fields stands.
NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "MQMD": (
        "Message Descriptor",
        {
            "StrucId": "mq.md.structid",
            "Version": "mq.md.version",
            "Report": "mq.md.report",
            "MsgType": "mq.md.msgtype",
            "Expiry": "mq.md.expiry",
            "Feedback": "mq.md.feedback",
            "Encoding": "mq.md.encoding",
            "CodedCharSetId": "mq.md.ccsid",
            "Format": "mq.md.format",
            "Priority": "mq.md.priority",
            "Persistence": "mq.md.persistence",
            "MsgId": "mq.md.msgid",
            "CorrelId": "mq.md.correlid",
            "BackoutCount": "mq.md.backount",
            "ReplyToQ": "mq.md.replytoq",
            "ReplyToQMgr": "mq.md.replytoqmgr",
            "UserIdentifier": "mq.md.userid",
            "AccountingToken": "mq.md.acttoken",
            "ApplIdentityData": "mq.md.appldata",
            "PutApplType": "mq.md.appltype",
            "PutApplName": "mq.md.applname",
            "PutDate": "mq.md.date",
            "PutTime": "mq.md.time",
            "ApplOriginData": "mq.md.origdata",
        }
        | _GROUP,
    ),
    "MQMDE": (
        "Message Descriptor Extension",
        {
            "StrucId": "mq.head.structid",
            "Version": "mq.head.version",
            "StrucLength": "mq.head.length",
            "Encoding": "mq.head.encoding",
            "CodedCharSetId": "mq.head.ccsid",
            "Format": "mq.head.format",
            "Flags": "mq.head.flags",
        }
        | _GROUP,
    ),
    "MQXQH": (
        "Transmission Queue Header",
        {
            "StrucId": "mq.xqh.structid",
            "Version": "mq.xqh.version",
            "RemoteQName": "mq.xqh.remoteq",
            "RemoteQMgrName": "mq.xqh.remoteqmgr",
        },
    ),
    "MQDLH": (
        "Dead-Letter Header",
        {
            "StrucId": "mq.dlh.structid",
            "Version": "mq.dlh.version",
            "Reason": "mq.dlh.reason",
            "DestQName": "mq.dlh.destq",
            "DestQMgrName": "mq.dlh.destqmgr",
            "Encoding": "mq.dlh.encoding",
            "CodedCharSetId": "mq.dlh.ccsid",
            "Format": "mq.dlh.format",
            "PutApplType": "mq.dlh.putappltype",
            "PutApplName": "mq.dlh.putapplname",
            "PutDate": "mq.dlh.putdate",
            "PutTime": "mq.dlh.puttime",
        },
    ),
}
#: tshark reads an MQMDE's characters in the character set of what follows it, not in that of what is before it.
GARBLED = {
    "ebcdic_ccsid500_be_data_utf8": ["MQMDE.StrucId", "MQMDE.Format"],
    "MQMDE.CodedCharSetId 500": ["MQMDE.StrucId", "MQMDE.CodedCharSetId", "MQMDE.Format"],
}


class Message(NamedTuple):
    """A message as it is sent: headers, each with its fields, in the order in which tshark shows them, and the data."""

    name: str
    writer: Writer
    sent: tuple[bool, bytes]
    headers: list[tuple[str, Row]]
    data: bytes


def filled(name: str, size: int, n: int, kind: str, extreme: bool) -> Any:
    """What no other field has; or what is as far from usual as it may be."""
    if kind == "c":
        return " " * size if extreme else f"{n}{name.upper()}{'ABCDEFGHIJKLM0123456789' * 3}"[:size]
    if kind == "b":
        return b"\xff" * size if extreme else bytes(n + k for k in range(size))
    return -(1 << 31) + n if extreme else 0x01020304 + n * 0x00030201


def fields(name: str, writer: Writer, extreme: bool = False, **known: Any) -> Row:
    """All fields of a structure, filled; what a reader goes by is as it must be."""
    known = {"Encoding": 0x111 if writer.big else 0x222, "CodedCharSetId": writer.ccsid} | known
    rows = LAYOUTS[name][3]
    made = {row[0]: filled(row[0], row[2], n, row[3], extreme) for n, row in enumerate(rows)}
    fixed = {row[0]: row[4] for row in rows if row[0] in ("Version", "StrucLength")}
    known |= fixed | {"StrucId": LAYOUTS[name][0].decode()} | known
    return made | {key: known[key] for key in made if key in known}


def message(
    name: str, writer: Writer, way: str, headers: list[tuple[str, Row]], data: bytes = b"data"
) -> Message:
    """Headers as we encode them, sent in one of the three ways. In a call the MQMD stands apart from the data."""
    parts = [encode(LAYOUTS[kind], row, big=writer.big, ccsid=writer.ccsid) for kind, row in headers]
    if way == "sent":
        sent = writer.sent(b"".join(parts) + data)
    else:
        sent = getattr(writer, way)(parts[0], b"".join(parts[1:]) + data)
    return Message(name, writer, sent, headers, data)


def every_structure(writer: Writer, extreme: bool) -> list[Message]:
    """All structures with all fields, in each order in which messages have them."""

    def made(kind: str, follows: str = "MQSTR   ", version: int = 1) -> tuple[str, Row]:
        known = {"Format": follows} | ({"Version": version} if kind == "MQMD" else {})
        row = fields(kind, writer, extreme, **known)
        if kind == "MQMD" and version == 1:
            row = {name: row[name] for name in row if name not in _GROUP}
        return kind, row

    mde, dlh, xqh = made("MQMDE"), made("MQDLH", "MQHMDE  "), made("MQXQH")
    descriptor, dead = made("MQMD", "MQHMDE  "), made("MQMD", "MQDEAD  ")
    name = f"{'big' if writer.big else 'little'}-{writer.ccsid}-{'extreme' if extreme else 'filled'}"
    return [
        message(f"{name}-put-MQMDE", writer, "put", [descriptor, mde]),
        message(f"{name}-put-MQDLH-MQMDE", writer, "put", [dead, dlh, mde]),
        message(f"{name}-got-version-2", writer, "got", [made("MQMD", version=2)]),
        message(f"{name}-sent-MQMDE", writer, "sent", [xqh, descriptor, mde]),
        message(f"{name}-sent-MQDLH-MQMDE", writer, "sent", [xqh, dead, dlh, mde]),
    ]


def of_the_vectors() -> list[Message]:
    """The MQMDEs of the shared vectors, put with a version-1 MQMD."""
    found = []
    for row in load("mqmde")["vectors"]:
        if row["codec"] == "ok":
            writer = Writer(row["order"] == "big", row["ccsid"])
            extension = row["fields"] | {"GroupId": bytes.fromhex(row["fields"]["GroupId"])}
            descriptor = fields("MQMD", writer, Version=1, Format="MQHMDE  ")
            descriptor = {name: descriptor[name] for name in descriptor if name not in _GROUP}
            headers = [("MQMD", descriptor), ("MQMDE", extension)]
            found.append(message(row["name"], writer, "put", headers, bytes.fromhex(row["payload_hex"])))
    return found


def on_transmission_queues() -> list[Message]:
    """What the shared cases say of transmission queues: others' bytes, of which our reader and tshark see the same."""
    writer = Writer(False, 819)
    found = []
    for row in load("mqput")["cases"]:
        if row["kind"] == "XMITQ":
            body = bytes.fromhex(row["body_hex"])
            headers = []
            at = 0
            for part in row["layout"][:-1]:
                kind, _, size = part.removesuffix(")").partition("(")
                kind = kind.rstrip("12")
                headers.append((kind, decode(LAYOUTS[kind], body, at, big=False, ccsid=819)))
                at += int(size)
            found.append(Message(row["name"], writer, writer.sent(body), headers, body[at:]))
    return found


def as_a_queue_manager_sends_it(writer: Writer) -> Message:
    """A segment of a message of a group, as our queue manager puts it on a transmission queue."""
    settings = QueueManagerSettings(writer.ccsid, 0x111 if writer.big else 0x222)
    own: Row = {"Encoding": settings.encoding, "CodedCharSetId": writer.ccsid}
    group: Row = {
        "GroupId": bytes(range(24)),
        "MsgSeqNumber": 3,
        "Offset": 4096,
        "MsgFlags": 10,
        "OriginalLength": 4,
    }
    md = MD(Version=2, Format="MQSTR", ReplyToQ="REPLIES", PutApplName="a board", **group, **own)
    row: Row = {
        name: value.decode() if isinstance(value, bytes) and MD.FIELDS[name][0] == "c" else value
        for name, value in md.get().items()
    }
    before: Row = {name: row[name] for name in row if name not in _GROUP}
    headers: list[tuple[str, Row]] = [
        (
            "MQXQH",
            {"StrucId": "XQH ", "Version": 1, "RemoteQName": "Q1".ljust(48), "RemoteQMgrName": " " * 48},
        ),
        ("MQMD", before | {"Version": 1, "Format": "MQHMDE  "}),
        (
            "MQMDE",
            {"StrucId": "MDE ", "Version": 2, "StrucLength": 72, "Format": "MQSTR   ", "Flags": 0}
            | group
            | own,
        ),
    ]
    body = transmission.wrap(md, b"data", b"Q1".ljust(48), b" " * 48, settings)
    return Message(f"wrapped-{writer.big}-{writer.ccsid}", writer, writer.sent(body), headers, b"data")


MESSAGES = [
    *(made for writer in WRITERS for extreme in (False, True) for made in every_structure(writer, extreme)),
    *of_the_vectors(),
    *on_transmission_queues(),
    *map(as_a_queue_manager_sends_it, WRITERS),
]


def same(ours: int | str | bytes, shown: str | None) -> bool:
    """Whether tshark shows our value. It has no signs, leaves out what is behind a NUL, and writes bytes as aa:bb."""
    if shown is None:
        return False
    if isinstance(ours, int):
        return (ours - int(shown, 0)) % (1 << 32) == 0
    return shown == (ours if isinstance(ours, str) else colons(ours))


def length(kind: str, row: Row) -> int:
    """A header's size in bytes."""
    return 324 if row["Version"] == 1 and kind == "MQMD" else LAYOUTS[kind][2]


def differences(sent: Message, seen: Fields) -> list[str]:
    """The fields of which tshark says something else, ``data`` among them."""
    found = []
    for kind, row in sent.headers:
        title, names = NAMES[kind]
        shown = seen.get(title, {})
        found += [f"{kind}.{name}" for name, value in row.items() if not same(value, shown.get(names[name]))]
    if seen.get("data", {}).get("data.data", "") != colons(sent.data):
        found.append("data")
    return found


@pytest.fixture(scope="module")
def tshark() -> Path:
    found = toolchain.find("tshark")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, tshark: Path) -> list[Fields]:
    path = tmp_path_factory.mktemp("tshark") / "messages.pcap"
    return read(path, tshark, [made.sent for made in MESSAGES])


@pytest.mark.needs_tshark
@each_row("number", range(len(MESSAGES)), ids=[made.name for made in MESSAGES])
def test_tshark_reads_what_we_encode(seen: list[Fields], number: int) -> None:
    made = MESSAGES[number]
    assert differences(made, seen[number]) == GARBLED.get(made.name, [])


@pytest.mark.needs_tshark
def test_tshark_sees_each_field_that_is_another(tmp_path: Path, tshark: Path) -> None:
    """One field is changed in the bytes, and tshark finds that one changed, and no other: each has its own place."""
    wanted = []
    changed = []
    for made in (one for one in MESSAGES if one.name.endswith("filled-sent-MQDLH-MQMDE")):
        up, data = made.sent
        at = len(data) - len(made.data) - sum(length(*header) for header in made.headers)
        for kind, row in made.headers:
            for name, offset, size, *_ in LAYOUTS[kind][3][: len(row)]:
                if name not in ("StrucId", "Version", "StrucLength"):
                    last = at + offset + (size - 1 if made.writer.big or size != 4 else 0)
                    changed.append((up, data[:last] + bytes([data[last] ^ 0x10]) + data[last + 1 :]))
                    wanted.append(
                        (made, GARBLED.get(f"{kind}.{name} {made.writer.ccsid}", [f"{kind}.{name}"]))
                    )
            at += length(kind, row)
    seen = read(tmp_path / "changed.pcap", tshark, changed)
    assert [differences(made, shown) for (made, _), shown in zip(wanted, seen, strict=True)] == [
        names for _, names in wanted
    ]
    assert len(wanted) == len(WRITERS) * (2 + 22 + 10 + 9)
