"""The structures that callers fill in: MD, PMO, GMO and OD, by IBM's names of their fields, with IBM's defaults.

Characters are bytes with their blanks (``b"MQSTR   "``), as in ``CMQC``; ASCII text is taken as well, and both are
filled up. A field takes what IBM's has room for and nothing else: ValueError, TypeError and AttributeError say which.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeAlias

from headwater.ibmmq.chain import MQMD
from headwater_host.mq import CMQC

Value: TypeAlias = "int | str | bytes"
#: name -> (kind, size, default): kinds are those of ``headwater.ibmmq.chain``.
Fields: TypeAlias = "Mapping[str, tuple[str, int, int | bytes]]"


class Structure:
    """Fields by IBM's names: ``MD(Format=CMQC.MQFMT_STRING)``, ``md.Priority = 3``, ``md["Priority"]``."""

    FIELDS: ClassVar[Fields] = {}
    DEFAULTS: ClassVar[dict[str, int | bytes]] = {}

    def __init_subclass__(cls) -> None:
        cls.DEFAULTS = {name: _checked(name, field, field[2]) for name, field in cls.FIELDS.items()}

    def __init__(self, **fields: Value):
        self.__dict__.update(self.DEFAULTS)
        self.set(**fields)

    def set(self, **fields: Value) -> None:
        """Change fields."""
        for name, value in fields.items():
            setattr(self, name, value)

    def get(self) -> dict[str, int | bytes]:
        """All fields, by name."""
        return dict(self.__dict__)

    def __setattr__(self, name: str, value: Value) -> None:
        if name not in self.FIELDS:
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        self.__dict__[name] = _checked(f"{type(self).__name__}.{name}", self.FIELDS[name], value)

    def __getitem__(self, name: str) -> int | bytes:
        value: int | bytes = self.__dict__[name]
        return value

    def __setitem__(self, name: str, value: Value) -> None:
        setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __repr__(self) -> str:
        said = [f"{name}={value!r}" for name, value in self.__dict__.items() if value != self.DEFAULTS[name]]
        return f"{type(self).__name__}({', '.join(said)})"


def _checked(name: str, field: tuple[str, int, int | bytes], value: object) -> int | bytes:
    kind, size, _ = field
    if kind in "lf":
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is an integer, not {value!r}")
        if not -(1 << 31) <= value < (1 << (32 if kind == "f" else 31)):
            raise ValueError(f"{name}: {value} is out of range")
        return value & 0xFFFFFFFF if kind == "f" else value
    if kind == "c" and isinstance(value, str):
        try:
            value = value.encode("ascii")
        except UnicodeEncodeError:
            raise ValueError(f"{name}: {value!r} is not ASCII") from None
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{name} is {'text' if kind == 'c' else 'bytes'}, not {value!r}")
    data = bytes(value)
    if len(data) > size:
        raise ValueError(f"{name}: {value!r} is longer than {size} bytes")
    # Of characters only those in front of a NUL count, as in C.
    return data.split(b"\0", 1)[0].ljust(size, b" ") if kind == "c" else data.ljust(size, b"\0")


_MQMD: dict[str, tuple[str, int, int | bytes]] = {
    name: (kind, size, CMQC.MQENC_NATIVE if default is None else default)
    for name, _, size, kind, default in MQMD[3]
}
_MQMD["Version"] = ("l", 4, CMQC.MQMD_VERSION_1)
#: An MQMD as it stands in the file: little-endian, in ASCII.
_PACKED = struct.Struct("<" + "".join({"l": "i", "f": "I"}.get(k) or f"{n}s" for k, n, _ in _MQMD.values()))
#: The fields that an MQMD has from version 2 on, and an MQMDE.
V2_FIELDS = ("GroupId", "MsgSeqNumber", "Offset", "MsgFlags", "OriginalLength")
#: The others, but for Version, which stays the caller's.
_V1_FIELDS = tuple(name for name in _MQMD if name not in V2_FIELDS and name != "Version")


class MD(Structure):
    """MQMD, the message descriptor. Of version 1, unless told otherwise: its last five fields do not count then."""

    FIELDS = _MQMD

    StrucId: bytes
    Version: int
    Report: int
    MsgType: int
    Expiry: int
    Feedback: int
    Encoding: int
    CodedCharSetId: int
    Format: bytes
    Priority: int
    Persistence: int
    MsgId: bytes
    CorrelId: bytes
    BackoutCount: int
    ReplyToQ: bytes
    ReplyToQMgr: bytes
    UserIdentifier: bytes
    AccountingToken: bytes
    ApplIdentityData: bytes
    PutApplType: int
    PutApplName: bytes
    PutDate: bytes
    PutTime: bytes
    ApplOriginData: bytes
    GroupId: bytes
    MsgSeqNumber: int
    Offset: int
    MsgFlags: int
    OriginalLength: int

    def pack(self) -> bytes:
        """The 364 bytes of version 2, little-endian, in ASCII."""
        return _PACKED.pack(*self.__dict__.values())

    @staticmethod
    def unpack(data: bytes) -> "MD":
        """``pack`` undone."""
        md = MD.__new__(MD)
        md.__dict__.update(zip(MD.FIELDS, _PACKED.unpack(data), strict=True))
        return md

    def copy(self) -> "MD":
        """Another one with the same fields."""
        md = MD.__new__(MD)
        md.__dict__.update(self.__dict__)
        return md

    def has_defaults(self) -> bool:
        """Whether its version-2 fields say nothing: neither group nor segment."""
        return all(self.__dict__[name] == self.DEFAULTS[name] for name in V2_FIELDS)

    def reset_v2(self) -> None:
        """Give its version-2 fields their defaults."""
        for name in V2_FIELDS:
            self.__dict__[name] = self.DEFAULTS[name]

    def take_over(self, other: "MD", names: Iterable[str]) -> None:
        """Have these fields as ``other`` has them."""
        mine, theirs = self.__dict__, other.__dict__
        for name in names:
            mine[name] = theirs[name]

    def fill(self, other: "MD") -> None:
        """Take over what a call returns; what a descriptor of version 1 has not, stays as it is."""
        self.take_over(
            other, _V1_FIELDS if self.Version == CMQC.MQMD_VERSION_1 else (*_V1_FIELDS, *V2_FIELDS)
        )


class PMO(Structure):
    """MQPMO, the options of a put."""

    FIELDS: ClassVar[Fields] = {
        "StrucId": ("c", 4, CMQC.MQPMO_STRUC_ID),
        "Version": ("l", 4, CMQC.MQPMO_VERSION_1),
        "Options": ("l", 4, CMQC.MQPMO_NONE),
        "Timeout": ("l", 4, -1),
        "Context": ("l", 4, 0),
        "KnownDestCount": ("l", 4, 0),
        "UnknownDestCount": ("l", 4, 0),
        "InvalidDestCount": ("l", 4, 0),
        "ResolvedQName": ("c", 48, b""),
        "ResolvedQMgrName": ("c", 48, b""),
    }

    StrucId: bytes
    Version: int
    Options: int
    Timeout: int
    Context: int
    KnownDestCount: int
    UnknownDestCount: int
    InvalidDestCount: int
    ResolvedQName: bytes
    ResolvedQMgrName: bytes


class GMO(Structure):
    """MQGMO, the options of a get. What it returns: ``ResolvedQName``; from version 2 on ``GroupStatus``,
    ``SegmentStatus``, ``Segmentation``; from version 3 on ``ReturnedLength``, in bytes."""

    FIELDS: ClassVar[Fields] = {
        "StrucId": ("c", 4, CMQC.MQGMO_STRUC_ID),
        "Version": ("l", 4, CMQC.MQGMO_VERSION_1),
        "Options": ("l", 4, CMQC.MQGMO_NO_WAIT),
        "WaitInterval": ("l", 4, 0),
        "Signal1": ("l", 4, 0),
        "Signal2": ("l", 4, 0),
        "ResolvedQName": ("c", 48, b""),
        "MatchOptions": ("l", 4, CMQC.MQMO_MATCH_MSG_ID | CMQC.MQMO_MATCH_CORREL_ID),
        "GroupStatus": ("l", 1, CMQC.MQGS_NOT_IN_GROUP),
        "SegmentStatus": ("l", 1, CMQC.MQSS_NOT_A_SEGMENT),
        "Segmentation": ("l", 1, CMQC.MQSEG_INHIBITED),
        "Reserved1": ("c", 1, b""),
        "MsgToken": ("b", 16, CMQC.MQMTOK_NONE),
        "ReturnedLength": ("l", 4, CMQC.MQRL_UNDEFINED),
    }

    StrucId: bytes
    Version: int
    Options: int
    WaitInterval: int
    Signal1: int
    Signal2: int
    ResolvedQName: bytes
    MatchOptions: int
    GroupStatus: int
    SegmentStatus: int
    Segmentation: int
    Reserved1: bytes
    MsgToken: bytes
    ReturnedLength: int


class OD(Structure):
    """MQOD, which queue is meant: ``ObjectName``, and ``ObjectQMgrName`` when it is another queue manager's."""

    FIELDS: ClassVar[Fields] = {
        "StrucId": ("c", 4, CMQC.MQOD_STRUC_ID),
        "Version": ("l", 4, CMQC.MQOD_VERSION_1),
        "ObjectType": ("l", 4, CMQC.MQOT_Q),
        "ObjectName": ("c", 48, b""),
        "ObjectQMgrName": ("c", 48, b""),
        "DynamicQName": ("c", 48, b"AMQ.*"),
        "AlternateUserId": ("c", 12, b""),
    }

    StrucId: bytes
    Version: int
    ObjectType: int
    ObjectName: bytes
    ObjectQMgrName: bytes
    DynamicQName: bytes
    AlternateUserId: bytes
