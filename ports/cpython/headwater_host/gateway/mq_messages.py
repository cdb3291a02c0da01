"""Extract messages with their topics from records."""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headwater.fmq.spec import CONSUMERESP, PUBLISH, REGISTER
from headwater.mqtt import packets_server, spec, topics
from headwater.mqtt.packets import Packet
from headwater.mqtt.properties import Packet5
from headwater_host.capture.fmq_frame import message_at, read_fmq, topic_text
from headwater_host.capture.format import DUPLICATE, FMQ, MQTT, MQTT_5, RECEIVED, UNMARKED, Record
from headwater_host.fmq.hashes import hash_of
from headwater_host.malformed import MalformedError
from headwater_host.topics import check_name

#: The newest messages that a duplicate is compared with: as many as can be unacknowledged.
RECENT = 65535
#: Length of a MsgId; prefix of MsgIds that are made from FMQ message ids.
_MSG_ID, _MSG_IDS = 24, b"HWFMQ"


class Message(NamedTuple):
    """A message. ``msg_id``: 24 bytes that identify it, or None if its protocol has no message id."""

    topic: str
    payload: memoryview
    msg_id: bytes | None = None


class Names:
    """Names of FMQ topics by their hashes. ``known`` loads a name, ``remember`` stores one."""

    def __init__(
        self, names: Sequence[str], known: Callable[[str], str | None], remember: Callable[[str, str], object]
    ):
        # A filter without wildcards is a name, which need not be registered in the log.
        self._here = {_key(name): name for name in names}
        self._known = known
        self._remember = remember

    def register(self, name: str) -> None:
        """Note the name of a topic."""
        if (key := _key(name)) not in self._here:
            self._here[key] = name
            self._remember(key, name)

    def name(self, text: str | None) -> str | None:
        """Return the name for ``text``, which is a hash if it begins with ``#``; None if it is unknown."""
        if text is None or not text.startswith("#"):
            return text
        if text not in self._here and (name := self._known(text)) is not None:
            self._here[text] = name
        return self._here.get(text)


def _key(name: str) -> str:
    return f"#{hash_of(name):032x}"


class Messages:
    """Extracts the messages of ``filters`` from records.

    ``count`` is called with "unnamed" for a message whose topic is known only as a topic alias or a hash, with
    "malformed" for a malformed frame, and with "duplicates" for one that is left out because the gateway has proven
    it a duplicate of a message taken here. If that message was not read (its block is damaged), the duplicate is taken.
    """

    def __init__(self, filters: Sequence[str], names: Names, count: Callable[[str], object]):
        self._filters = [name.encode() for name in filters]
        self._names = names
        self._packet = Packet(b"", check_name)
        self._packet5 = Packet5(b"", check_name)
        self._count = count
        # Peer, packet id and receive time of the newest messages that may have duplicates, oldest first.
        self._recent: dict[tuple[str, int, int], None] = {}

    def message(self, record: Record) -> Message | None:
        """Return the message of a record if its topic matches a filter."""
        if record.direction != RECEIVED or not record.frame:
            return None
        try:
            if record.protocol == FMQ:
                return self._fmq(record.frame)
            if record.protocol == MQTT and record.frame[0] >> 4 == spec.PUBLISH:
                return self._mqtt(record)
        except MalformedError:
            self._count("malformed")
        return None

    def _is_duplicate(self, record: Record, packet_id: int) -> bool:
        if record.mark == DUPLICATE and (record.peer, packet_id, record.first_ns) in self._recent:
            self._count("duplicates")
            return True
        if record.mark != UNMARKED:
            recent = self._recent
            # Later duplicates of the same message name its first receipt as well.
            at = record.first_ns if record.mark == DUPLICATE else record.time_ns
            recent[record.peer, packet_id, at] = None
            if len(recent) > RECENT:
                del recent[next(iter(recent))]
        return False

    def _matches(self, name: bytes) -> bool:
        return any(topics.matches(one, name, 0, len(name)) for one in self._filters)

    def _mqtt(self, record: Record) -> Message | None:
        frame = record.frame
        is_5 = record.version == MQTT_5
        p: Packet = self._packet5 if is_5 else self._packet
        p.buf = frame
        if packets_server.decode_packet(p, 0, len(frame)) != len(frame):
            self._count("malformed")
            return None
        if p.topic_at == p.topic_end:
            # Only a topic alias, of a connection that may have ended.
            self._count("unnamed")
            return None
        if not self._matches(bytes(frame[p.topic_at : p.topic_end])):
            return None
        if self._is_duplicate(record, p.packet_id):
            return None
        return Message(p.topic_text(), memoryview(frame)[p.payload_at : p.end])

    def _fmq(self, frame: bytes) -> Message | None:
        kind = frame[0] >> 4
        if kind not in (PUBLISH, CONSUMERESP, REGISTER):
            return None
        f = read_fmq(frame)
        if kind == REGISTER:
            name = topic_text(frame[f.at[0] : f.end])
            # Other names are unlimited and would be stored for ever.
            if name is not None and not name.startswith("#") and self._matches(name.encode()):
                self._names.register(name)
            return None
        topic_at, tags_at, payload_at = message_at(f)
        topic = self._names.name(topic_text(frame[topic_at:tags_at]))
        if topic is None:
            self._count("unnamed")
            return None
        if not self._matches(topic.encode()):
            return None
        own = hashlib.sha256(frame[f.id_at : f.id_end]).digest()
        msg_id = _MSG_IDS + own[: _MSG_ID - len(_MSG_IDS)]
        return Message(topic, memoryview(frame)[payload_at : f.end], msg_id)
