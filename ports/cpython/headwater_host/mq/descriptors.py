"""Structures that callers fill in, by IBM's names of their fields with IBM's defaults: MD, the message descriptor.

Characters are bytes with their blanks (``b"MQSTR   "``), as in ``CMQC``; ASCII text is taken as well, and both are
filled up. A field takes what IBM's has room for and nothing else: ValueError, TypeError and AttributeError say which.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple, TypeAlias

from headwater.ibmmq.chain import MQMD
from headwater_host.mq import CMQC
from headwater_host.mq.structures import latin_1

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


class QueueManagerSettings(NamedTuple):
    """What the rules need to know of the queue manager."""

    ccsid: int = 819
    encoding: int = CMQC.MQENC_NATIVE
    zos: bool = False

    @property
    def big(self) -> bool:
        """Whether it writes integers big-endian."""
        return self.encoding & CMQC.MQENC_INTEGER_MASK == CMQC.MQENC_INTEGER_NORMAL

    @property
    def text_ccsid(self) -> int:
        """How it writes the characters of descriptors, which are Latin-1 here: any of them can be written."""
        return latin_1(self.ccsid)
