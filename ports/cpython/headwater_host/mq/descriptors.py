"""MD, GMO and other structures with IBM's defaults.

Characters are bytes with their blanks (``b"MQSTR   "``), as in ``CMQC``; ASCII text is accepted, and both are padded.
Values that do not fit a field raise ValueError, TypeError or AttributeError.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

from headwater.ibmmq.chain import MQMD
from headwater_host.mq import CMQC
from headwater_host.mq.structures import latin_1

Value: TypeAlias = "int | str | bytes"
#: name -> (kind, size, default): kinds are those of ``headwater.ibmmq.chain``.
Fields: TypeAlias = "Mapping[str, tuple[str, int, int | bytes]]"


class Structure:
    """A structure with fields by IBM's names: ``MD(Priority=3)``, ``md.Priority = 3``, ``md["Priority"]``.

    A subclass gives its fields as ``FIELDS``, or each by ``number`` or ``chars``.
    """

    FIELDS: ClassVar[Fields] = {}
    DEFAULTS: ClassVar[dict[str, int | bytes]] = {}

    def __init_subclass__(cls) -> None:
        if not cls.FIELDS:
            cls.FIELDS = {name: field for name, field in vars(cls).items() if isinstance(field, tuple)}
        cls.DEFAULTS = {name: _checked(name, field, field[2]) for name, field in cls.FIELDS.items()}

    def __init__(self, **fields: Value):
        self.__dict__.update(self.DEFAULTS)
        self.set(**fields)

    def set(self, **fields: Value) -> None:
        """Set fields."""
        for name, value in fields.items():
            setattr(self, name, value)

    def get(self) -> dict[str, int | bytes]:
        """Return all fields by name."""
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


def number(default: int = 0) -> Any:
    """Return a field for an integer."""
    return "l", 4, default


def chars(size: int, default: bytes = b"", kind: str = "c") -> Any:
    """Return a field for characters, or of another kind."""
    return kind, size, default


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
    # As in C, a NUL ends characters.
    return data.split(b"\0", 1)[0].ljust(size, b" ") if kind == "c" else data.ljust(size, b"\0")


_MQMD: dict[str, tuple[str, int, int | bytes]] = {
    name: (kind, size, CMQC.MQENC_NATIVE if default is None else default)
    for name, _, size, kind, default in MQMD[3]
}
_MQMD["Version"] = ("l", 4, CMQC.MQMD_VERSION_1)
#: An MQMD in the queue file: little-endian, ASCII.
_PACKED = struct.Struct("<" + "".join({"l": "i", "f": "I"}.get(k) or f"{n}s" for k, n, _ in _MQMD.values()))
#: The fields of version 2, which an MQMDE has as well.
V2_FIELDS = ("GroupId", "MsgSeqNumber", "Offset", "MsgFlags", "OriginalLength")
#: All other fields except Version.
_V1_FIELDS = tuple(name for name in _MQMD if name not in V2_FIELDS and name != "Version")


class MD(Structure):
    """MQMD: message descriptor, by default of version 1, in which the last five fields do not count."""

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
        """Encode for the queue file: the 364 bytes of version 2, little-endian, in ASCII."""
        return _PACKED.pack(*self.__dict__.values())

    @staticmethod
    def unpack(data: bytes) -> "MD":
        """Decode what ``pack`` returned."""
        md = MD.__new__(MD)
        md.__dict__.update(zip(MD.FIELDS, _PACKED.unpack(data), strict=True))
        return md

    def copy(self) -> "MD":
        """Return a copy."""
        md = MD.__new__(MD)
        md.__dict__.update(self.__dict__)
        return md

    def has_defaults(self) -> bool:
        """Tell whether the version-2 fields have their defaults."""
        return all(self.__dict__[name] == self.DEFAULTS[name] for name in V2_FIELDS)

    def reset_v2(self) -> None:
        """Set the version-2 fields to their defaults."""
        for name in V2_FIELDS:
            self.__dict__[name] = self.DEFAULTS[name]

    def take_over(self, other: "MD", names: Iterable[str]) -> None:
        """Copy fields from ``other``."""
        mine, theirs = self.__dict__, other.__dict__
        for name in names:
            mine[name] = theirs[name]

    def fill(self, other: "MD") -> None:
        """Copy the fields that a call returns in a descriptor of this version."""
        self.take_over(
            other, _V1_FIELDS if self.Version == CMQC.MQMD_VERSION_1 else (*_V1_FIELDS, *V2_FIELDS)
        )


class QueueManagerSettings(NamedTuple):
    """Settings of the queue manager that the rules need."""

    ccsid: int = 819
    encoding: int = CMQC.MQENC_NATIVE
    zos: bool = False

    @property
    def big(self) -> bool:
        """True if integers are big-endian."""
        return self.encoding & CMQC.MQENC_INTEGER_MASK == CMQC.MQENC_INTEGER_NORMAL

    @property
    def text_ccsid(self) -> int:
        """The character set for characters of headers, which holds all of Latin-1."""
        return latin_1(self.ccsid)
