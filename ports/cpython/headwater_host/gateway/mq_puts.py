"""Put messages of the log into the local queue."""

from collections import Counter
from collections.abc import Callable

from headwater.ibmmq.header import BIG, EBCDIC, MQMDE, sniff
from headwater_host.gateway.mq_config import MqConfig
from headwater_host.gateway.mq_messages import Message
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_host.mq.fields import IN_GROUP, SEGMENT
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.outcomes import Problem as Fault
from headwater_host.mq.reassembly.outcomes import Whole
from headwater_host.mq.structures import HeaderError
from headwater_mq.forward import Forward, is_full

#: Prefix of the counts of problems by kind.
PROBLEM = "problem: "
# Bytes that a message takes in the file beside its data, rounded up.
_ROW = 1024


class Puts:
    """Puts within transactions of ``forward``. ``adds`` has the counts; ``tell`` receives problems as text.

    Raises MQMIError if there is no room for now. Messages that are refused are set aside.
    """

    def __init__(
        self, config: MqConfig, forward: Forward, adds: "Counter[str]", tell: Callable[[str], object]
    ):
        self._config = config
        self._forward = forward
        self._adds = adds
        self._tell = tell

    def take(self, message: Message, assembler: Assembler | None, now: float) -> None:
        """Put a message of the log, or add it to the reassembly."""
        self._adds["messages"] += 1
        if assembler is None:
            self._put_as_it_is(message)
            return
        for outcome in assembler.add(message.topic, message.payload, now):
            if isinstance(outcome, Whole):
                self._put_whole(outcome, message.msg_id)
            elif isinstance(outcome, Fault):
                self.fault(outcome, message.payload)

    def _plain(self, msg_id: bytes | None) -> MD:
        """Return the descriptor of a message without an MQMDE."""
        return MD(
            Version=CMQC.MQMD_VERSION_2,
            Format=self._config.format,
            CodedCharSetId=self._config.ccsid,
            MsgId=msg_id or CMQC.MQMI_NONE,
        )

    def _put_as_it_is(self, message: Message) -> None:
        """Put a message with its MQMDE, converted to the queue manager's encoding and character set."""
        payload = message.payload
        kind = sniff(payload, 0, len(payload))
        if not kind:
            self._put(self._plain(message.msg_id), payload)
            return
        settings = self._forward.settings
        try:
            fields = structures.decode(
                MQMDE, payload, big=bool(kind & BIG), ccsid=500 if kind & EBCDIC else 819
            )
            own = structures.encode(MQMDE, fields, big=settings.big, ccsid=settings.ccsid)
            md = MD(Format=CMQC.MQFMT_MD_EXTENSION, MsgId=message.msg_id or CMQC.MQMI_NONE)
            self._forward.put(md, own + payload[len(own) :])
        except (HeaderError, MQMIError) as error:
            if isinstance(error, MQMIError) and is_full(error):
                raise
            self._problem("malformed", f"{message.topic}: {error}")
            self._set_aside(MD(Version=CMQC.MQMD_VERSION_2), payload, error.reason)
        else:
            self._count(len(payload) - len(own))

    def _put_whole(self, whole: Whole, msg_id: bytes | None) -> None:
        """Put a logical message, in segments if it is too long for the queue."""
        config = self._config
        # As a queue manager does, split at multiples of 16.
        most = config.message_bytes // 16 * 16
        count = -(-whole.length // most)
        if count > config.depth or whole.length + count * _ROW > config.bytes:
            # It will never fit.
            self._problem(
                "too large", f"{whole.topic}: {whole.length} bytes are more than the queue has room for"
            )
            self._adds["not_set_aside"] += 1
            return
        md = self._plain(msg_id)
        if whole.encoding:
            md.set(Format=whole.format, Encoding=whole.encoding, CodedCharSetId=whole.ccsid)
        md.set(GroupId=whole.group_id, MsgSeqNumber=whole.seq, MsgFlags=whole.flags & IN_GROUP)
        if not md.MsgFlags:
            md.set(MsgSeqNumber=1, GroupId=CMQC.MQGI_NONE)
        if whole.length <= config.message_bytes:
            self._put(md, whole.read())
            return
        # The sender's GroupId if it has one; otherwise a new one, as a queue manager generates.
        sent = whole.flags & (SEGMENT | IN_GROUP)
        group_id = whole.group_id if sent else self._forward.new_id()
        md.set(GroupId=group_id, MsgSeqNumber=whole.seq, MsgId=CMQC.MQMI_NONE)
        waiting = bytearray()
        offset = 0
        for chunk in whole.chunks():
            waiting += chunk
            while len(waiting) > most:
                self._segment(md, offset, waiting[:most], CMQC.MQMF_SEGMENT)
                del waiting[:most]
                offset += most
        self._segment(md, offset, waiting, CMQC.MQMF_LAST_SEGMENT)

    def _segment(self, md: MD, offset: int, data: bytearray, flag: int) -> None:
        one = md.copy()
        one.set(Offset=offset, MsgFlags=md.MsgFlags | flag, OriginalLength=len(data))
        self._put(one, memoryview(bytes(data)))

    def _put(self, md: MD, data: "bytes | memoryview") -> None:
        """Put a message to the queue, or set it aside if the queue refuses it."""
        try:
            self._forward.put(md, data)
        except MQMIError as error:
            if is_full(error):
                raise
            self._problem("refused", str(error))
            self._set_aside(md, data, error.reason)
        else:
            self._count(len(data))

    def _count(self, size: int) -> None:
        self._adds["put"] += 1
        self._adds["bytes"] += size

    def fault(self, fault: Fault, payload: "bytes | memoryview") -> None:
        """Put a problem of the assembler to the dead-letter queue, with the reason."""
        self._problem(fault.kind, str(fault))
        md = MD(Version=CMQC.MQMD_VERSION_2)
        if not fault.aside:
            self._set_aside(md, payload, fault.reason)
            return
        for seq, offset, data in fault.pieces():
            one = md.copy()
            one.set(GroupId=fault.group_id, MsgSeqNumber=seq, Offset=offset, MsgFlags=CMQC.MQMF_SEGMENT)
            self._set_aside(one, data, fault.reason)

    def _set_aside(self, md: MD, data: "bytes | memoryview", reason: int) -> None:
        try:
            self._forward.set_aside(md, data, reason)
        except MQMIError as error:
            if not is_full(error):
                raise
            # The log still has the message; a full dead-letter queue must not stop the queue.
            self._adds["not_set_aside"] += 1
        else:
            self._adds["set_aside"] += 1

    def _problem(self, kind: str, text: str) -> None:
        self._adds[f"{PROBLEM}{kind}"] += 1
        self._tell(text)
