"""Decode FMQ frames column by column: type and message id of every frame, and complete PUBLISH and CONSUMERESP.

numpy decodes frames as encoders usually write them, ten thousand at a time. Every other frame (malformed, rare
form, rare type) goes through the core's decoder, which alone decides whether it is valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.fmq.spec import CONSUMERESP, PINGREQ, PUBLISH, REGISTER
from headwater_host.capture.fmq_frame import tag_texts, topic_text
from headwater_spark.arrow import Bools, codes, octets, strings
from headwater_spark.fmq_core import CoreFrame, are_plain_tags, is_plain_topic, registered_topic
from headwater_spark.words import Data, Offsets, Words

Starts = npt.NDArray[np.int32]

# Valid first bytes. The core judges DUP at QoS 0.
_USUAL = np.zeros(256, np.bool_)
_USUAL[[0x30, 0x31, *range(0x32, 0x36), *range(0x3A, 0x3E), 0x50, 0x60, 0x70, 0xB0, 0xC0, 0xE0]] = True
# PUBREC, PUBREL, PUBCOMP and PINGREQ have no body and no length.
_HAS_LENGTH = np.ones(16, np.bool_)
_HAS_LENGTH[[5, 6, 7, 12]] = False
#: Maximum number of tags of a message that numpy reads.
_MAX_TAGS = 8
# Pieces of a frame: type, id, length and correlation, topic, tags, payload.
_PIECES = 6
_ID, _TOPIC, _TAGS, _PAYLOAD = 1, 3, 4, 5


@dataclass
class _Ids:
    """Message ids. The other fields are undefined where `usual` is False."""

    usual: Bools
    process: Words
    thread: Words
    made: Words
    end: Offsets


def _ids(data: Data, at: Offsets) -> _Ids:
    """Read the message ids at these offsets (section 2), in their usual form and with a time from 1970."""
    octets = data.octets
    p = (octets[at] & 15).astype(np.int64)
    thread_at = at + 1 + p
    low = octets[thread_at]
    t = (low >> 4).astype(np.int64)
    time_at = thread_at + 1 + t
    tag = octets[time_at]
    size = (tag & 7).astype(np.int64)
    size[size == 0] = 8
    made = data.integers(time_at + 1, size)
    # Up to 4 bytes of process number and 3 of thread number fit into 64 bits with the type.
    usual = (p <= 4) & (t <= 3) & (tag & 0xF8 == 0xB0) & (made >> np.uint64(63) == 0)
    process = data.integers(at + 1, np.minimum(p, 8))
    thread = data.integers(thread_at + 1, np.minimum(t, 8)) << np.uint64(4) | (low & 15).astype(np.uint64)
    return _Ids(usual, process, thread, made, time_at + 1 + size)


class _Frames:
    """Offsets of the pieces of n frames in `data`. numpy understands the `usual` ones."""

    def __init__(self, data: Data, starts: Offsets):
        self.data = data
        self.begin, self.end = starts[:-1], starts[1:]
        n = len(self.begin)
        head = data.octets[self.begin]
        self.kind: npt.NDArray[np.uint8] = (head >> 4).astype(np.uint8)
        self.head = head
        ids = _ids(data, self.begin + 1)
        self.process, self.thread, self.made = ids.process, ids.thread, ids.made
        self.id_end = ids.end
        self.usual = _USUAL[head] & ids.usual & (ids.end <= self.end)
        body = self._body()
        self.message = (self.kind == PUBLISH) | (self.kind == CONSUMERESP)
        # Other types with a body are rare.
        self.usual &= self.message | (body == self.end)
        self.topic_at = body
        self.topic_end = body.copy()
        self.tags_end = body.copy()
        self._message(np.flatnonzero(self.usual & self.message))
        self.error = np.zeros(n, np.int8)
        self.error_at = np.zeros(n, np.int32)
        #: Message ids whose numbers do not fit the columns.
        self.odd_ids: list[int] = []

    def _body(self) -> Offsets:
        """Return where the bodies begin (section 3), or the start of the frame if it is not usual."""
        data, at = self.data, np.where(self.usual, self.id_end, self.begin)
        has = _HAS_LENGTH[self.kind]
        first = data.octets[at]
        more = np.where(has, first >> 4, 0).astype(np.int64)
        length = data.integers(at + 1, np.minimum(more, 8)) << np.uint64(4) | (first & 15).astype(np.uint64)
        body = at + has + more
        # The core decodes bodies of a megabyte and more.
        self.usual &= more <= 2
        self.usual &= body + np.where(has, length, 0).astype(np.int64) == self.end
        return np.where(self.usual, body, self.begin)

    def _message(self, rows: Offsets) -> None:
        """Find topic and tags of usual messages."""
        data, octets = self.data, self.data.octets
        at, end = self.topic_at[rows], self.end[rows]
        usual = np.ones(len(rows), np.bool_)
        answers = self.kind[rows] == CONSUMERESP
        if answers.any():
            at = self._correlation(rows, at, end, answers, usual)
        tag, size = octets[at], octets[at + 1].astype(np.int64)
        # A string of up to 255 or 65,535 bytes, a hash, or None in a reply.
        topic_end = at + 2 + size
        usual_topic = (tag == 0x11) & (size > 0)
        longer = tag == 0x12
        if longer.any():
            size = data.integers(at + 1, np.full(len(rows), 2)).astype(np.int64)
            topic_end = np.where(longer, at + 3 + size, topic_end)
            usual_topic |= longer & (size > 0)
        hashed = tag == 0x61
        if hashed.any():
            usual_topic |= hashed & (topic_end - at > 2) & (topic_end - at <= 18)
        if answers.any():
            none = answers & (tag == 0)
            topic_end[none] = at[none] + 1
            usual_topic |= none
        usual &= usual_topic & (topic_end < end)
        topic_end = np.where(usual, topic_end, self.begin[rows])
        tags_end = topic_end + 1
        tagged = octets[topic_end]
        some = usual & (tagged == 0xD1)
        if some.any():
            self._tags(np.flatnonzero(some), topic_end, tags_end, end, usual)
        usual &= (tagged == 0xD0) | (tagged == 0xD1)
        usual &= tags_end <= end
        self.topic_at[rows] = at
        self.topic_end[rows] = topic_end
        self.tags_end[rows] = tags_end
        self.usual[rows] = usual

    def _correlation(self, rows: Offsets, at: Offsets, end: Offsets, answers: Bools, usual: Bools) -> Offsets:
        """Return where topics begin after the correlation of a subscription or a CONSUME."""
        octets = self.data.octets
        tag = octets[at]
        size = (tag & 7).astype(np.int64)
        size[size == 0] = 8
        behind = at + 1 + size
        good = tag & 0xF8 == 0x30
        once = np.flatnonzero(answers & (tag >> 4 == 10))
        if len(once):
            ids = _ids(self.data, at[once])
            good[once] = ids.usual
            behind[once] = ids.end
        good &= behind < end
        usual &= good | ~answers
        return np.where(answers, np.where(good, behind, self.begin[rows]), at)

    def _tags(self, rows: Offsets, tags_at: Offsets, tags_end: Offsets, end: Offsets, usual: Bools) -> None:
        """Walk through the lists of tags of some messages."""
        octets = self.data.octets
        count = octets[tags_at[rows] + 1]
        good = (count > 0) & (count <= _MAX_TAGS)
        at = tags_at[rows] + 2
        for k in range(int(count[good].max()) if good.any() else 0):
            here = np.flatnonzero(good & (count > k))
            tag, size = octets[at[here]], octets[at[here] + 1]
            behind = at[here] + 2 + size
            fits = (tag == 0x11) & (size > 0) & (behind <= end[rows[here]])
            at[here] = np.where(fits, behind, at[here])
            good[here] &= fits
        tags_end[rows] = at
        usual[rows] &= good

    def decode_unusual(self) -> None:
        """Decode with the core what is not usual."""
        for row in np.flatnonzero(~self.usual).tolist():
            begin, end = int(self.begin[row]), int(self.end[row])
            found = CoreFrame(self.data.octets[begin:end].tobytes())
            self.kind[row] = found.kind
            self.error[row] = found.error
            self.error_at[row] = found.error_at
            if found.error:
                continue
            self.id_end[row] = begin + found.id_end
            self.topic_at[row] = begin + found.topic_at
            self.topic_end[row] = begin + found.topic_end
            self.tags_end[row] = begin + found.tags_end
            if found.fits:
                self.process[row], self.thread[row], self.made[row] = found.process, found.thread, found.made
            else:
                self.odd_ids.append(row)

    def pieces(self, rows: Bools) -> Any:
        """Return an Arrow array of _PIECES pieces per frame over the same bytes, for the frames in `rows`."""
        n = len(self.begin)
        pieces = np.empty(_PIECES * n + 1, np.int32)
        pieces[0:-1:_PIECES] = self.begin
        pieces[-1] = self.end[-1] if n else 0
        every = bool(rows.all())
        for k, at in enumerate(
            (self.begin + 1, self.id_end, self.topic_at, self.topic_end, self.tags_end), 1
        ):
            pieces[k::_PIECES] = at if every else np.where(rows, at, self.begin)
        return pa.Array.from_buffers(
            pa.binary(), _PIECES * n, [None, pa.py_buffer(pieces), pa.py_buffer(self.data.octets)]
        )


def _take(pieces: Any, k: int, where: Bools) -> Any:
    """Return piece `k` of each frame, null unless `where`."""
    rows = np.arange(k, _PIECES * len(where), _PIECES, dtype=np.int32)
    return pieces.take(pa.array(rows) if where.all() else pa.array(rows, mask=~where))


def _doubtful(column: Any, is_plain: Callable[[bytes], bool]) -> Bools:
    """Return the rows of a dictionary column whose value is not plain."""
    doubtful = [not is_plain(raw) for raw in column.dictionary.to_pylist()]
    if not any(doubtful):
        return np.zeros(len(column), np.bool_)
    # Null has index -1.
    return np.array([*doubtful, False])[codes(column)]


@dataclass(frozen=True)
class Packets:
    """n decoded frames.

    `kind` is the frame type, 0 to 15, also 0 for an empty frame. `error` is 0 or a code of `headwater.errors`, and
    `error_at` the offset of the error in the frame. With an error, the later columns are undefined and Arrow's are
    null. `message` marks PUBLISH and CONSUMERESP; their fields are null elsewhere.

    The message id has its bytes, its frame type, process and thread number, and its time in ns since 1970. The
    numbers are undefined where `odd`: beyond 32, 28 and 63 bits. `origin` (dictionary of string) names the maker;
    two ids are equal if origin and time are.
    """

    kind: npt.NDArray[np.uint8]
    error: npt.NDArray[np.int8]
    error_at: npt.NDArray[np.int32]
    message: Bools
    publish: Bools
    dup: Bools
    qos: npt.NDArray[np.uint8]
    retain: Bools
    id: Any
    id_type: npt.NDArray[np.uint8]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    made_ns: npt.NDArray[np.int64]
    odd: Bools
    origin: Any
    topic: Any
    tags: Any
    payload: Any


def decode(data: npt.NDArray[np.uint8], starts: Starts) -> Packets:
    """Decode the frames `data[starts[i] : starts[i + 1]]`. `data` is smaller than 2 GiB."""
    first = int(starts[0])
    frames = _Frames(Data(data[first : starts[-1]]), (starts - first).astype(np.int64))
    message = frames.usual & frames.message
    pieces = frames.pieces(frames.usual)
    topics, tags = (_take(pieces, k, message).dictionary_encode() for k in (_TOPIC, _TAGS))
    frames.usual &= ~(_doubtful(topics, is_plain_topic) | _doubtful(tags, are_plain_tags))
    if not frames.usual.all():
        frames.decode_unusual()
        message = (frames.error == 0) & ((frames.kind == PUBLISH) | (frames.kind == CONSUMERESP))
        pieces = frames.pieces(frames.error == 0)
        topics, tags = (_take(pieces, k, message).dictionary_encode() for k in (_TOPIC, _TAGS))
    return _packets(frames, message, pieces, topics, tags)


def registered(data: npt.NDArray[np.uint8], starts: Starts, packets: Packets) -> set[str]:
    """Return the topics that REGISTER frames name."""
    rows = np.flatnonzero((packets.kind == REGISTER) & (packets.error == 0)).tolist()
    return {registered_topic(data[starts[row] : starts[row + 1]].tobytes()) for row in rows}


def parse_ids(ids: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return `origin` and `made_ns` of a column of message ids without nulls."""
    # A PINGREQ is its type and a message id.
    frames = pc.binary_join_element_wise(pa.scalar(bytes([PINGREQ << 4])), ids, pa.scalar(b""))
    starts, data = octets(frames)
    found = decode(data, starts)
    return found.origin, found.made_ns


def _packets(frames: _Frames, message: Bools, pieces: Any, topics: Any, tags: Any) -> Packets:
    good = frames.error == 0
    head = frames.head
    odd = np.zeros(len(good), np.bool_)
    odd[frames.odd_ids] = True
    ids = _take(pieces, _ID, good)
    texts = [topic_text(raw) for raw in topics.dictionary.to_pylist()]
    # None means the topic of the subscription.
    named = np.array([*(text is not None for text in texts), False])[codes(topics)]
    topic = strings(topics.indices.fill_null(0).to_numpy(), [text or "" for text in texts], ~named)
    lists = pa.array([tag_texts(raw) for raw in tags.dictionary.to_pylist()], pa.list_(pa.string()))
    publish = message & (frames.kind == PUBLISH)
    id_type = (frames.data.octets[frames.begin + 1] >> 4).astype(np.uint8)
    return Packets(
        kind=frames.kind,
        error=frames.error,
        error_at=frames.error_at,
        message=message,
        publish=publish,
        dup=head & 8 != 0,
        qos=(head >> 1 & 3).astype(np.uint8),
        retain=head & 1 != 0,
        id=ids,
        id_type=id_type,
        process=frames.process.astype(np.int64),
        thread=frames.thread.astype(np.int64),
        made_ns=np.where(odd, 0, frames.made).astype(np.int64),
        odd=odd,
        origin=_origins(id_type, frames, good, odd, ids),
        topic=topic,
        tags=lists.take(tags.indices),
        payload=_take(pieces, _PAYLOAD, message),
    )


def _origins(id_type: npt.NDArray[np.uint8], frames: _Frames, good: Bools, odd: Bools, ids: Any) -> Any:
    """Return type, process and thread of each id as a string, or the whole id if it is odd."""
    key = id_type.astype(np.uint64) << np.uint64(60) | frames.process << np.uint64(28) | frames.thread
    found = pa.array(key).dictionary_encode()
    names = [
        f"{key >> 60}/{key >> 28 & 0xFFFFFFFF}/{key & 0xFFFFFFF}" for key in found.dictionary.to_pylist()
    ]
    index = found.indices.to_numpy()
    if odd.any():
        index = index.copy()
        for row in np.flatnonzero(odd).tolist():
            index[row] = len(names)
            names.append(ids[row].as_py().hex())
    return strings(index, names, ~good)
