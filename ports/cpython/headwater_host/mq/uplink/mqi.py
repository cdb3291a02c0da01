"""Calls of IBM's client library, through IBM's package ibmmq.

Calls block; a connection is for one thread. docs/ibm-mq-uplink.md lists what is tested.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater_host.exits import USAGE, CommandError
from headwater_host.mq import CMQC
from headwater_host.mq.fields import LARGEST
from headwater_host.mq.uplink import mqi_reasons

#: The fields of an MQMD that the sender sets. The queue manager sets the others, the context.
FIELDS = (
    *(
        "Report",
        "MsgType",
        "Expiry",
        "Feedback",
        "Encoding",
        "CodedCharSetId",
        "Format",
        "Priority",
        "Persistence",
    ),
    *("MsgId", "CorrelId", "ReplyToQ", "ReplyToQMgr"),
    *("GroupId", "MsgSeqNumber", "Offset", "MsgFlags", "OriginalLength"),
)


class MqiError(Exception):
    """A call of the MQI failed with a reason code."""

    def __init__(self, call: str, reason: int, text: str = ""):
        super().__init__(text or f"{call}: {mqi_reasons.text(reason)}")
        self.call = call
        self.reason = reason


@dataclass(frozen=True)
class Channel:
    """A channel to a queue manager. ``connection`` has IBM's form: ``host(port)``, separated by commas."""

    queue_manager: str
    channel: str
    connection: str
    user: str = ""
    password: bytes | None = field(default=None, repr=False)
    #: A CipherSpec enables TLS, which needs the key repository.
    cipher: str = ""
    key_repository: str = ""
    certificate_label: str = ""
    peer_name: str = ""
    #: Heartbeat interval in s.
    heartbeat: int = 30


def load() -> Any:
    """Import IBM's package. Raises CommandError, which names the missing package."""
    try:
        return importlib.import_module("ibmmq")
    except ImportError as error:
        raise CommandError(_missing(error), USAGE) from error
    except OSError as error:
        # Its Python and compiled parts have different versions.
        raise CommandError(f"IBM's package ibmmq is damaged: {error}", USAGE) from error


def _missing(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "ibmmq":
        return (
            "the uplink needs IBM's package ibmmq and IBM MQ's redistributable client: "
            "pip install 'headwater[ibmmq]'; see docs/ibm-mq-uplink.md for the client"
        )
    # If its compiled part cannot be loaded, the package tries another name; the first error has the cause.
    while isinstance(error.__context__, ImportError):
        error = error.__context__
    return (
        f"IBM's package ibmmq is installed, but not the client library that it needs ({error}): install IBM MQ's "
        "redistributable client and add its lib64 to LD_LIBRARY_PATH"
    )


def _signed(value: Any) -> Any:
    """Convert a field for IBM's package, in which flags are a signed MQLONG."""
    return value - (1 << 32) if isinstance(value, int) and value >= 1 << 31 else value


class Connection:
    """A client connection to a queue manager (MQCONNX). Raises MqiError, or CommandError without IBM's client."""

    def __init__(self, to: Channel):
        mq = self._mq = load()
        c = self._c = mq.CMQC
        cd = mq.CD(
            ChannelName=to.channel,
            ConnectionName=to.connection,
            ChannelType=mq.CMQXC.MQCHT_CLNTCONN,
            TransportType=mq.CMQXC.MQXPT_TCP,
            MaxMsgLength=LARGEST,
            HeartbeatInterval=to.heartbeat,
        )
        # The uplink reconnects itself and needs to know of each loss.
        cno = mq.CNO(Options=c.MQCNO_CLIENT_BINDING | c.MQCNO_RECONNECT_DISABLED)
        parts: dict[str, Any] = {"cd": cd, "cno": cno}
        if to.cipher:
            cd.SSLCipherSpec = to.cipher.encode()
            if to.peer_name:
                cd.SSLPeerNamePtr = to.peer_name
            parts["sco"] = mq.SCO(KeyRepository=to.key_repository, CertificateLabel=to.certificate_label)
        if to.user:
            parts["csp"] = mq.CSP(CSPUserId=to.user, CSPPassword=to.password or b"")
        self._manager = mq.QueueManager(None)
        self._call("MQCONNX", self._manager.connect_with_options, to.queue_manager, **parts)

    def _call(self, verb: str, function: Any, *args: Any, **named: Any) -> Any:
        """Call the library. Raises MqiError for a failure, and for a warning of MQCMIT."""
        try:
            return function(*args, **named)
        except self._mq.MQMIError as error:
            if error.comp == self._c.MQCC_WARNING and verb != "MQCMIT":
                return None
            raise MqiError(verb, error.reason) from None
        except self._mq.PYIFError as error:
            # The library has noticed that the handle is gone.
            raise MqiError(verb, CMQC.MQRC_HCONN_ERROR, f"{verb}: {error}") from None

    def open_output(self, queue: str) -> Any:
        """MQOPEN a queue for output. In a cluster all messages go to one instance, so groups stay together."""
        c = self._c
        return self._open(queue, c.MQOO_OUTPUT | c.MQOO_BIND_ON_OPEN | c.MQOO_FAIL_IF_QUIESCING)

    def open_record(self, queue: str) -> Any:
        """MQOPEN a record queue for browse, input and output."""
        c = self._c
        options = c.MQOO_OUTPUT | c.MQOO_INPUT_SHARED | c.MQOO_BROWSE | c.MQOO_FAIL_IF_QUIESCING
        return self._open(queue, options)

    def _open(self, queue: str, options: int) -> Any:
        opened = self._mq.Queue(self._manager)
        self._call("MQOPEN", opened.open, queue, options)
        return opened

    def put(self, queue: Any, fields: Mapping[str, Any], data: bytes) -> None:
        """MQPUT in the unit of work, with the fields of an MQMD of version 2 by name."""
        c = self._c
        given = {name: _signed(fields[name]) for name in FIELDS if name in fields}
        md = self._mq.MD(Version=c.MQMD_VERSION_2, **given)
        options = c.MQPMO_SYNCPOINT | c.MQPMO_FAIL_IF_QUIESCING
        self._call("MQPUT", queue.put, data, md, self._mq.PMO(Options=options))

    def browse(self, queue: Any, correl_id: bytes) -> list[bytes]:
        """Browse all messages with ``correl_id``."""
        c = self._c
        found = []
        which = c.MQGMO_BROWSE_FIRST
        while (data := self._get(queue, correl_id, which)) is not None:
            found.append(data)
            which = c.MQGMO_BROWSE_NEXT
        return found

    def take(self, queue: Any, correl_id: bytes) -> list[bytes]:
        """MQGET all messages with ``correl_id`` in the unit of work."""
        found = []
        while (data := self._get(queue, correl_id, self._c.MQGMO_SYNCPOINT)) is not None:
            found.append(data)
        return found

    def _get(self, queue: Any, correl_id: bytes, options: int) -> bytes | None:
        c = self._c
        options |= c.MQGMO_NO_WAIT | c.MQGMO_FAIL_IF_QUIESCING | c.MQGMO_NO_PROPERTIES
        gmo = self._mq.GMO(Options=options, MatchOptions=c.MQMO_MATCH_CORREL_ID)
        try:
            data: bytes | None = self._call("MQGET", queue.get, None, self._mq.MD(CorrelId=correl_id), gmo)
        except MqiError as error:
            if error.reason == c.MQRC_NO_MSG_AVAILABLE:
                return None
            raise
        return data or b""

    def commit(self) -> None:
        """MQCMIT. After any error but MQRC_BACKED_OUT (2003) the outcome is unknown."""
        self._call("MQCMIT", self._manager.commit)

    def back_out(self) -> None:
        """MQBACK: undo the unit of work."""
        self._call("MQBACK", self._manager.backout)

    def close(self) -> None:
        """MQBACK, because MQDISC would commit, then MQDISC. Errors are ignored."""
        for verb, function in (("MQBACK", self._manager.backout), ("MQDISC", self._manager.disconnect)):
            try:
                self._call(verb, function)
            except MqiError:
                # The connection and its unit of work are gone, and so are its handles.
                continue
