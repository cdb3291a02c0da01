"""A queue manager that records: it stands at the place of IBM's client library, below IBM's own package.

``ibmmq`` runs unchanged, its compiled part included, over the library of ``mq_library``. ``Recorder`` holds every call
against what IBM documents of it (what it finds is in ``misuse``), keeps messages as a queue manager does, with units of
work, and fails where it is told to.

This is no queue manager: what it knows is IBM's documentation as it was read for this project.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.host import mq_library
from tests.host.mq_library import FAILED, OK, WARNING

_LOST = 2009
_BACKED_OUT = 2003

#: Reason codes that are warnings where they come from MQCMIT or MQPUT.
_WARNINGS = {("MQCMIT", 2003), ("MQCMIT", 2124), ("MQPUT", 2049), ("MQPUT", 2104)}


class Message(NamedTuple):
    """A message on the recorded queue manager: its MQMD by names, and its data."""

    md: dict[str, Any]
    data: bytes


class Call(NamedTuple):
    """A call, with what matters of its arguments, and how it ended."""

    verb: str
    details: dict[str, Any]
    reason: int


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a call. ``done``: the call has its effect nevertheless. ``dies``: the connection is lost, and
    what was under way with it; ``late``: the queue manager notices, and does a commit that it was asked for, only so
    many calls later."""

    reason: int
    done: bool = False
    dies: bool = False
    late: int = 0


@dataclass
class Queue:
    """A queue: what is on it, and what it takes."""

    messages: list[Message] = field(default_factory=list)
    depth: int = 5000
    length: int = 4 << 20
    #: MQOPEN fails with this.
    refuses: int = 0


@dataclass
class _Connection:
    alive: bool = True
    objects: dict[int, tuple[str, int]] = field(default_factory=dict)
    put: list[tuple[str, Message]] = field(default_factory=list)
    got: list[tuple[str, Message]] = field(default_factory=list)
    cursor: dict[int, int] = field(default_factory=dict)

    @property
    def working(self) -> bool:
        return bool(self.put or self.got)


class MisuseError(AssertionError):
    """A call that IBM's documentation forbids."""


def _same(given: bytes, name: str) -> bool:
    return given.rstrip(b" \0") == name.encode()


class Recorder:
    """``queues``: those that there are, by name. ``fault`` is asked before each call, with its number from 0."""

    def __init__(self, queues: dict[str, Queue], fault: Callable[[int, str], Fault | None] | None = None):
        self.mq = mq_library.package()
        self.c = self.mq.CMQC
        self.queues = queues
        self.calls: list[Call] = []
        self.misuse: list[str] = []
        #: How the last MQCONNX was made: the structures, by name.
        self.connected: dict[str, Any] = {}
        self.user: tuple[bytes, bytes] | None = None
        self.peer_name = self.certificate_label = b""
        self._fault = fault or (lambda _number, _verb: None)
        self._connections: dict[int, _Connection] = {}
        #: The handle before the first of this recorder's connections.
        self.first = next(mq_library.handles)
        self._late: list[tuple[int, _Connection, bool]] = []

    def __enter__(self) -> "Recorder":
        mq_library.answer(self)
        return self

    def __exit__(self, *_: object) -> None:
        mq_library.answer(None)

    # -- a call ------------------------------------------------------------------------------------------------------

    def call(self, verb: str, arguments: list[Any]) -> tuple[int, int]:
        """One call: completion and reason code."""
        self._settle()
        details: dict[str, Any] = {}
        fault = self._fault(len(self.calls), verb)
        try:
            reason = getattr(self, f"_{verb.lower()}")(arguments, details, fault)
        except MisuseError as error:
            self.misuse.append(f"call {len(self.calls)}, {verb}: {error}")
            reason = 2195
        except Exception as error:
            self.misuse.append(f"call {len(self.calls)}, {verb}: the recorder failed: {error!r}")
            reason = 2195
        self.calls.append(Call(verb, details, reason))
        return (OK if not reason else WARNING if (verb, reason) in _WARNINGS else FAILED), reason

    def verbs(self) -> list[str]:
        """The names of the calls."""
        return [call.verb for call in self.calls]

    def _settle(self) -> None:
        """Commits that were on their way arrive."""
        for item in [item for item in self._late if item[0] <= len(self.calls)]:
            self._late.remove(item)
            (self._commit if item[2] else self._back)(item[1])

    def _commit(self, connection: _Connection) -> None:
        for name, message in connection.put:
            self.queues[name].messages.append(message)
        connection.put, connection.got = [], []

    def _back(self, connection: _Connection) -> None:
        for name, message in reversed(connection.got):
            self.queues[name].messages.insert(0, message)
        connection.put, connection.got = [], []

    def _failed(self, connection: _Connection, fault: Fault, committing: bool = False) -> int:
        """What a fault does to the connection, behind the call's effect."""
        if fault.dies:
            connection.alive = False
            if fault.late:
                self._late.append((len(self.calls) + fault.late, connection, committing))
            else:
                self._back(connection)
        return fault.reason

    def _connection(self, handle: int) -> _Connection | None:
        """None when it is lost already; what was never there is misuse."""
        if handle not in self._connections:
            raise MisuseError(f"{handle} is no connection handle, or one that was disconnected")
        connection = self._connections[handle]
        return connection if connection.alive else None

    def _struct(self, kind: str, address: int, versions: tuple[int, ...]) -> Any:
        if not address:
            raise MisuseError(f"no MQ{kind}")
        made = getattr(self.mq, kind)()
        made.unpack(ctypes.string_at(address, made.get_length()))
        if kind != "CD":
            expected = kind.ljust(4).encode()
            if made._StrucId != expected:
                raise MisuseError(f"StrucId of the MQ{kind} is {made._StrucId!r}")
        if made.Version not in versions:
            raise MisuseError(f"Version of the MQ{kind} is {made.Version}")
        return made

    def _options(self, what: str, options: int, known: tuple[str, ...], one_of: tuple[str, ...] = ()) -> None:
        """``known``: every option that may be there; ``one_of``: exactly one of these is, or that is misuse."""
        values = {name: getattr(self.c, name) for name in known + one_of}
        rest = options & ~functools.reduce(int.__or__, values.values())
        if rest:
            raise MisuseError(f"{what}: unknown options {rest:#x}")
        if one_of and sum(bool(options & values[name]) for name in one_of) != 1:
            raise MisuseError(f"{what}: not one of {', '.join(one_of)}")

    # -- the verbs ---------------------------------------------------------------------------------------------------

    def _mqconnx(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        name, cno_at, handle = arguments
        c = self.c
        details["name"] = ctypes.string_at(name)[:48].rstrip().decode()
        cno = self._struct("CNO", cno_at, tuple(range(5, 9)))
        self._options(
            "MQCNO",
            cno.Options,
            ("MQCNO_HANDLE_SHARE_BLOCK", "MQCNO_HANDLE_SHARE_NO_BLOCK", "MQCNO_RECONNECT_DISABLED"),
            ("MQCNO_CLIENT_BINDING",),
        )
        if not cno.Options & c.MQCNO_RECONNECT_DISABLED:
            raise MisuseError(
                "the client would reconnect by itself, and a commit be of unknown outcome unnoticed"
            )
        if bool(cno.Options & c.MQCNO_HANDLE_SHARE_BLOCK) and bool(
            cno.Options & c.MQCNO_HANDLE_SHARE_NO_BLOCK
        ):
            raise MisuseError("two ways to share handles")
        cd = self._struct("CD", cno._ClientConnPtr, tuple(range(4, 14)))
        if cd.ChannelType != self.mq.CMQXC.MQCHT_CLNTCONN or cd.TransportType != self.mq.CMQXC.MQXPT_TCP:
            raise MisuseError("the MQCD is not of a client's channel over TCP")
        if not cd.ChannelName.strip(b" \0") or not cd.ConnectionName.strip(b" \0"):
            raise MisuseError("the MQCD does not say where to")
        secure = bool(cd.SSLCipherSpec.strip(b" \0"))
        if secure and cd.Version < 7:
            raise MisuseError("TLS needs an MQCD of version 7")
        self.connected = {"cno": cno, "cd": cd}
        if cno._SSLConfigPtr:
            sco = self._struct("SCO", cno._SSLConfigPtr, tuple(range(1, 8)))
            if secure and not sco.KeyRepository.strip(b" \0"):
                raise MisuseError("TLS without a key repository")
            self.connected["sco"] = sco
            # IBM's package does not read what is behind an array.
            self.certificate_label = ctypes.string_at(cno._SSLConfigPtr + 564, 64).rstrip(b" \0")
        elif secure:
            raise MisuseError("TLS without an MQSCO")
        self.peer_name = (
            ctypes.string_at(cd.SSLPeerNamePtr, cd.SSLPeerNameLength) if cd.SSLPeerNamePtr else b""
        )
        self.user = None
        if cno._SecurityParmsPtr:
            csp = self._struct("CSP", cno._SecurityParmsPtr, (1, 2, 3))
            if csp.AuthenticationType == c.MQCSP_AUTH_USER_ID_AND_PWD:
                self.user = (
                    ctypes.string_at(csp.CSPUserId, csp._CSPUserIdLength),
                    ctypes.string_at(csp.CSPPassword, csp._CSPPasswordLength),
                )
        if fault is not None and not fault.done:
            handle[0] = -1
            return fault.reason
        handle[0] = number = next(mq_library.handles)
        self._connections[number] = connection = _Connection()
        return self._failed(connection, fault) if fault is not None else 0

    def _mqdisc(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        handle = arguments[0]
        connection = self._connection(handle[0])
        if connection is None:
            del self._connections[handle[0]]
            return _LOST
        if connection.working:
            raise MisuseError("MQDISC with an open unit of work commits it")
        if fault is not None:
            return self._failed(connection, fault)
        connection.alive = False
        del self._connections[handle[0]]
        handle[0] = -1
        return 0

    def _mqopen(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        handle, od_at, options, hobj = arguments
        connection = self._connection(handle)
        if connection is None:
            return _LOST
        od = self._struct("OD", od_at, (1, 2, 3, 4))
        if od.ObjectType != self.c.MQOT_Q:
            raise MisuseError("not a queue")
        name = od.ObjectName.rstrip(b" \0").decode()
        details |= {"queue": name, "options": options}
        known = (
            "MQOO_OUTPUT",
            "MQOO_INPUT_SHARED",
            "MQOO_BROWSE",
            "MQOO_BIND_ON_OPEN",
            "MQOO_FAIL_IF_QUIESCING",
        )
        self._options("MQOPEN", options, known)
        if not options & (self.c.MQOO_OUTPUT | self.c.MQOO_INPUT_SHARED | self.c.MQOO_BROWSE):
            raise MisuseError("opened for nothing")
        if fault is not None:
            return self._failed(connection, fault)
        if name not in self.queues:
            return 2085
        if self.queues[name].refuses:
            return self.queues[name].refuses
        number = 100 + len(connection.objects)
        connection.objects[number] = name, options
        hobj[0] = number
        return 0

    def _mqclose(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        handle, hobj, options = arguments
        connection = self._connection(handle)
        if connection is None:
            return _LOST
        if hobj[0] not in connection.objects:
            raise MisuseError(f"{hobj[0]} is no object handle")
        if options != self.c.MQCO_NONE:
            raise MisuseError("options of MQCLOSE for a permanent queue")
        del connection.objects[hobj[0]]
        hobj[0] = -1
        return self._failed(connection, fault) if fault is not None else 0

    def _object(self, connection: _Connection, hobj: int, needed: int) -> str:
        if hobj not in connection.objects:
            raise MisuseError(f"{hobj} is no object handle of this connection")
        name, options = connection.objects[hobj]
        if not options & needed:
            raise MisuseError(f"{name} was not opened for this")
        return name

    def _mqput(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        handle, hobj, md_at, pmo_at, length, data_at = arguments
        connection = self._connection(handle)
        if connection is None:
            return _LOST
        c = self.c
        name = self._object(connection, hobj, c.MQOO_OUTPUT)
        pmo = self._struct("PMO", pmo_at, (1, 2, 3))
        self._options(
            "MQPMO", pmo.Options, ("MQPMO_FAIL_IF_QUIESCING",), ("MQPMO_SYNCPOINT", "MQPMO_NO_SYNCPOINT")
        )
        md = self._struct("MD", md_at, (1, 2))
        data = ctypes.string_at(data_at, length) if length else b""
        fields = {key: value for key, value in md.get().items() if not key.startswith("_")}
        self._check_md(fields, length)
        details |= {"queue": name, "md": fields, "data": data}
        if fault is not None and not fault.done:
            if fault.reason == _BACKED_OUT:
                self._back(connection)
            return self._failed(connection, fault)
        queue = self.queues[name]
        if length > queue.length:
            return 2030
        under_way = sum(one == name for other in self._connections.values() for one, _ in other.put)
        if len(queue.messages) + under_way >= queue.depth:
            return 2053
        if not fields["MsgId"].strip(b"\0"):
            fields["MsgId"] = b"AMQ recorder" + len(self.calls).to_bytes(12, "big")
        message = Message(fields, data)
        if pmo.Options & c.MQPMO_SYNCPOINT:
            connection.put.append((name, message))
        else:
            queue.messages.append(message)
        return self._failed(connection, fault) if fault is not None else 0

    def _check_md(self, md: dict[str, Any], length: int) -> None:
        c = self.c
        flags, group = md["MsgFlags"], md["GroupId"].strip(b"\0")
        segment = flags & (c.MQMF_SEGMENT | c.MQMF_LAST_SEGMENT)
        in_group = flags & (c.MQMF_MSG_IN_GROUP | c.MQMF_LAST_MSG_IN_GROUP)
        plain = (group, md["MsgSeqNumber"], md["Offset"], flags, md["OriginalLength"]) == (b"", 1, 0, 0, -1)
        if md["Version"] != 2:
            raise MisuseError(
                "the MQMD has no fields for groups and segments, or the queue manager ignores them"
            )
        if flags & 0xFFF & ~31:
            raise MisuseError(f"MsgFlags {flags:#x}: the queue manager rejects a bit")
        if not plain and (segment or in_group) and not group:
            raise MisuseError("a message of a group, or a segment, without a GroupId gets one of its own")
        if not 1 <= md["MsgSeqNumber"] <= 999_999_999 or not 0 <= md["Offset"] <= 999_999_999:
            raise MisuseError("MsgSeqNumber or Offset out of range")
        if md["Offset"] and not segment:
            raise MisuseError("an Offset without a segment")
        if segment and not flags & c.MQMF_LAST_SEGMENT and not length:
            raise MisuseError("a segment without data that is not the last")
        if md["Persistence"] not in (0, 1, 2) or not -1 <= md["Priority"] <= 9:
            raise MisuseError("Persistence or Priority out of range")
        if md["Encoding"] == 0 or md["Expiry"] == 0:
            raise MisuseError("Encoding and Expiry are not 0")

    def _mqget(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        handle, hobj, md_at, gmo_at, length, data_at, data_length = arguments
        connection = self._connection(handle)
        if connection is None:
            return _LOST
        c = self.c
        gmo = self._struct("GMO", gmo_at, (2, 3, 4))
        browse = gmo.Options & (c.MQGMO_BROWSE_FIRST | c.MQGMO_BROWSE_NEXT)
        how = ("MQGMO_BROWSE_FIRST", "MQGMO_BROWSE_NEXT", "MQGMO_SYNCPOINT", "MQGMO_NO_SYNCPOINT")
        self._options("MQGMO", gmo.Options, ("MQGMO_FAIL_IF_QUIESCING", "MQGMO_NO_PROPERTIES"), how)
        name = self._object(connection, hobj, c.MQOO_BROWSE if browse else c.MQOO_INPUT_SHARED)
        if gmo.MatchOptions & ~(c.MQMO_MATCH_CORREL_ID | c.MQMO_MATCH_MSG_ID):
            raise MisuseError("match options that a queue without an index may not serve")
        md = self._struct("MD", md_at, (1, 2))
        details |= {"queue": name, "browse": bool(browse)}
        if fault is not None:
            return self._failed(connection, fault)
        queue = self.queues[name]
        start = connection.cursor.get(hobj, 0) if gmo.Options & c.MQGMO_BROWSE_NEXT else 0
        for number, message in enumerate(queue.messages):
            if number < start:
                continue
            if gmo.MatchOptions & c.MQMO_MATCH_CORREL_ID and message.md["CorrelId"] != md.CorrelId:
                continue
            data_length[0] = len(message.data)
            if len(message.data) > length:
                return 2080
            if browse:
                connection.cursor[hobj] = number + 1
            else:
                del queue.messages[number]
                if gmo.Options & c.MQGMO_SYNCPOINT:
                    connection.got.append((name, message))
            packed = self.mq.MD(**message.md).pack()
            ctypes.memmove(md_at, packed, len(packed))
            ctypes.memmove(data_at, message.data, len(message.data))
            details["data"] = message.data
            return 0
        return 2033

    def _mqcmit(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        connection = self._connection(arguments[0])
        if connection is None:
            return _LOST
        if not connection.working:
            raise MisuseError("MQCMIT of nothing")
        details["messages"] = len(connection.put)
        if fault is not None:
            if fault.done:
                self._commit(connection)
            elif not fault.late:
                self._back(connection)
            return self._failed(connection, fault, committing=True)
        self._commit(connection)
        return 0

    def _mqback(self, arguments: list[Any], details: dict[str, Any], fault: Fault | None) -> int:
        connection = self._connection(arguments[0])
        if connection is None:
            return _LOST
        self._back(connection)
        return self._failed(connection, fault) if fault is not None else 0
