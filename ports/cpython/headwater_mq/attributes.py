"""Attributes of queues and of the queue manager."""

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import QueueManagerSettings
from headwater_host.mq.errors import MQMIError, failed
from headwater_host.mq.fields import LARGEST, MAX_PRIORITY

_NAME = re.compile(r"[A-Za-z0-9._/%]{1,48}")

_T = TypeVar("_T", bound="QueueAttributes | QueueManagerAttributes")


@dataclass(frozen=True)
class QueueAttributes:
    """A local queue, or the local definition of a remote queue.

    ``MaxQDepth`` is in messages, ``MaxMsgLength`` in bytes. The last three are for remote queues. If ``XmitQName`` is
    empty, messages go to the queue named ``RemoteQMgrName`` or to the queue manager's ``DefXmitQName``.
    """

    QType: int = CMQC.MQQT_LOCAL
    MaxQDepth: int = 5000
    MaxMsgLength: int = 4 << 20
    MsgDeliverySequence: int = CMQC.MQMDS_PRIORITY
    DefPriority: int = 0
    #: IBM's default is MQPER_NOT_PERSISTENT.
    DefPersistence: int = CMQC.MQPER_PERSISTENT
    Usage: int = CMQC.MQUS_NORMAL
    IndexType: int = CMQC.MQIT_NONE
    InhibitGet: int = CMQC.MQQA_GET_ALLOWED
    InhibitPut: int = CMQC.MQQA_PUT_ALLOWED
    RemoteQName: str = ""
    RemoteQMgrName: str = ""
    XmitQName: str = ""

    def __post_init__(self) -> None:
        _within(self, "QType", (CMQC.MQQT_LOCAL, CMQC.MQQT_REMOTE))
        _within(self, "MaxQDepth", range(1_000_000_000))
        _within(self, "MaxMsgLength", range(LARGEST + 1))
        _within(self, "MsgDeliverySequence", (CMQC.MQMDS_PRIORITY, CMQC.MQMDS_FIFO))
        _within(self, "DefPriority", range(MAX_PRIORITY + 1))
        _within(self, "DefPersistence", (CMQC.MQPER_NOT_PERSISTENT, CMQC.MQPER_PERSISTENT))
        _within(self, "Usage", (CMQC.MQUS_NORMAL, CMQC.MQUS_TRANSMISSION))
        _within(
            self, "IndexType", (CMQC.MQIT_NONE, CMQC.MQIT_MSG_ID, CMQC.MQIT_CORREL_ID, CMQC.MQIT_GROUP_ID)
        )
        _within(self, "InhibitGet", (CMQC.MQQA_GET_ALLOWED, CMQC.MQQA_GET_INHIBITED))
        _within(self, "InhibitPut", (CMQC.MQQA_PUT_ALLOWED, CMQC.MQQA_PUT_INHIBITED))
        for name in ("RemoteQName", "RemoteQMgrName", "XmitQName"):
            if getattr(self, name):
                check_name(getattr(self, name))
        remote = self.QType == CMQC.MQQT_REMOTE
        if any(bool(said) != remote for said in (self.RemoteQName, self.RemoteQMgrName)) or (
            self.XmitQName and not remote
        ):
            raise ValueError(
                "a remote queue needs RemoteQName and RemoteQMgrName; a local queue has neither, and no XmitQName"
            )


@dataclass(frozen=True)
class QueueManagerAttributes:
    """The queue manager. It writes ``Encoding`` and ``CodedCharSetId``; ``Platform`` is MQPL_UNIX or MQPL_ZOS."""

    QMgrName: str = "HEADWATER"
    CodedCharSetId: int = 819
    Encoding: int = CMQC.MQENC_NATIVE
    Platform: int = CMQC.MQPL_UNIX
    MaxMsgLength: int = 4 << 20
    MaxUncommittedMsgs: int = 10_000
    DefXmitQName: str = ""

    def __post_init__(self) -> None:
        check_name(self.QMgrName)
        _within(self, "CodedCharSetId", range(1, 65536))
        integers = self.Encoding & CMQC.MQENC_INTEGER_MASK
        if integers not in (CMQC.MQENC_INTEGER_NORMAL, CMQC.MQENC_INTEGER_REVERSED):
            raise ValueError(f"Encoding {self.Encoding:#x} does not say how integers are encoded")
        _within(self, "Platform", (CMQC.MQPL_UNIX, CMQC.MQPL_ZOS))
        _within(self, "MaxMsgLength", range(LARGEST + 1))
        _within(self, "MaxUncommittedMsgs", range(1, 1_000_000_000))
        if self.DefXmitQName:
            check_name(self.DefXmitQName)

    @property
    def settings(self) -> QueueManagerSettings:
        """The settings that the rules of puts and gets need."""
        return QueueManagerSettings(self.CodedCharSetId, self.Encoding, self.Platform == CMQC.MQPL_ZOS)


def _within(of: object, name: str, allowed: Any) -> None:
    value = getattr(of, name)
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise ValueError(f"{name} cannot be {value!r}")


def check_name(name: str) -> str:
    """Return the name of a queue or queue manager without trailing blanks. Raises MQRC_OBJECT_NAME_ERROR."""
    name = name.rstrip(" ")
    if not _NAME.fullmatch(name):
        raise failed(CMQC.MQRC_OBJECT_NAME_ERROR, f"{name!r} is not 1 to 48 of A-Z a-z 0-9 . _ / %")
    return name


def dump(attributes: "QueueAttributes | QueueManagerAttributes") -> str:
    """Encode attributes for the file."""
    return json.dumps(asdict(attributes))


def load(kind: type[_T], text: object, of: str) -> _T:
    """Decode what ``dump`` wrote; missing attributes get their defaults. Raises MQRC_OBJECT_DAMAGED, naming ``of``."""
    names = {field.name for field in fields(kind)}
    try:
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.40} is not text")
        given: object = json.loads(text)
        if not isinstance(given, dict):
            raise TypeError(f"{text:.40} is not an object")
        return kind(**{name: value for name, value in given.items() if name in names})
    except (TypeError, ValueError, AttributeError, MQMIError) as error:
        raise failed(CMQC.MQRC_OBJECT_DAMAGED, f"the attributes of {of} are damaged ({error})") from error


#: Selectors of ``inquire``: of a queue, beside the counts in the file, and of the queue manager.
OF_QUEUES = {
    CMQC.MQIA_Q_TYPE: "QType",
    CMQC.MQIA_MAX_Q_DEPTH: "MaxQDepth",
    CMQC.MQIA_MAX_MSG_LENGTH: "MaxMsgLength",
    CMQC.MQIA_MSG_DELIVERY_SEQUENCE: "MsgDeliverySequence",
    CMQC.MQIA_DEF_PRIORITY: "DefPriority",
    CMQC.MQIA_DEF_PERSISTENCE: "DefPersistence",
    CMQC.MQIA_USAGE: "Usage",
    CMQC.MQIA_INDEX_TYPE: "IndexType",
    CMQC.MQIA_INHIBIT_GET: "InhibitGet",
    CMQC.MQIA_INHIBIT_PUT: "InhibitPut",
    CMQC.MQCA_REMOTE_Q_NAME: "RemoteQName",
    CMQC.MQCA_REMOTE_Q_MGR_NAME: "RemoteQMgrName",
    CMQC.MQCA_XMIT_Q_NAME: "XmitQName",
}
OF_QUEUE_MANAGERS = {
    CMQC.MQCA_Q_MGR_NAME: "QMgrName",
    CMQC.MQIA_CODED_CHAR_SET_ID: "CodedCharSetId",
    CMQC.MQIA_PLATFORM: "Platform",
    CMQC.MQIA_MAX_MSG_LENGTH: "MaxMsgLength",
    CMQC.MQIA_MAX_UNCOMMITTED_MSGS: "MaxUncommittedMsgs",
    CMQC.MQCA_DEF_XMIT_Q_NAME: "DefXmitQName",
}
