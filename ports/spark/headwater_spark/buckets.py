"""Pass segments from parts of the log to reassembling tasks.

Each part writes a file with one record batch per *bucket*; all messages of a GroupId are in the same bucket. A task
reads its batch from every file, so the rows do not pass through the JVM.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headwater.mqtt.topics import matches
from headwater_host.mq import CMQC
from headwater_host.mq.fields import IN_GROUP, SEGMENT
from headwater_spark.arrow import Bools, Rows, values
from headwater_spark.assembly import TOO_LARGE
from headwater_spark.mqmde import Mqmdes
from headwater_spark.segments import Hashes, hashes
from headwater_spark.sizes import MAX_MESSAGE

#: Subfolder of the run's folder.
FOLDER = "segments"
#: Kinds of logical messages, in the order of the report.
KINDS = ("whole", "incomplete", "faulty", "too large")
_KINDS = {CMQC.MQRC_INCOMPLETE_MSG: "incomplete", TOO_LARGE: "too large"}
# Bytes of the log per bucket.
_BUCKET_BYTES = 128 << 20
_SCHEMA = pa.schema(
    [pa.field("topic", pa.string()), pa.field("payload", pa.binary()), pa.field("time_ns", pa.int64())]
)


class Options(NamedTuple):
    """Topic filters of the messages to reassemble, the maximum payload size, and the number of buckets."""

    topics: tuple[str, ...] = ()
    max_message: int = MAX_MESSAGE
    buckets: int = 1

    def counts(self, topics: Any) -> Bools:
        """Return the rows of a dictionary column of topics that match."""
        if not self.topics:
            return np.ones(len(topics), np.bool_)
        patterns = [pattern.encode() for pattern in self.topics]
        names = [(name or "").encode() for name in values(topics)]
        known = [any(matches(pattern, name, 0, len(name)) for pattern in patterns) for name in names]
        # A message without a topic matches no filter.
        indices = topics.indices.fill_null(len(known)).to_numpy()
        found: Bools = np.array([*known, False])[indices]
        return found


def buckets(log_bytes: int, slots: int) -> int:
    """Return how many buckets a log needs; each task has one."""
    return max(slots, -(-log_bytes // _BUCKET_BYTES))


def write(out: Path, label: str, count: int, messages: dict[str, Any], found: Mqmdes, good: Rows) -> Hashes:
    """Write messages with an MQMDE, `good` of `found`, as part `label` in `count` buckets.

    Returns the hashes of their groups, each once.
    """
    path = out / FOLDER / f"{label}.arrow"
    if not len(good):
        # An earlier attempt at this part may have written a file.
        path.unlink(missing_ok=True)
        return np.zeros(0, np.uint64)
    rows = found.rows[good]
    topic = messages["topic"].cast(pa.string()).fill_null("").dictionary_encode()
    key = hashes(topic.take(pa.array(rows)), found.group_id[good])
    single = found.flags[good] & (SEGMENT | IN_GROUP) == 0
    groups = np.unique(key[~single])
    # Messages without a group share one GroupId and need not meet.
    key[single] = np.arange(np.count_nonzero(single), dtype=np.uint64)
    bucket = (key % np.uint64(count)).astype(np.int64)
    order = np.argsort(bucket.astype(np.uint16) if count <= 0x10000 else bucket, kind="stable")
    edges = np.searchsorted(bucket[order], np.arange(count + 1)).tolist()
    index = pa.array(rows[order])
    columns = {"topic": topic, **{name: messages[name] for name in _SCHEMA.names if name != "topic"}}
    batch = pa.record_batch([columns[f.name].take(index).cast(f.type) for f in _SCHEMA], schema=_SCHEMA)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        for start, end in pairwise(edges):
            writer.write_batch(batch.slice(start, end - start))
    partial.replace(path)
    return groups


def read(out: Path, bucket: int) -> Iterator[Any]:
    """Yield the record batches of one bucket, in the order of the parts."""
    for path in sorted((out / FOLDER).glob("[!.]*.arrow")):
        with pa.memory_map(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(bucket)
            if batch.num_rows:
                yield batch


def kinds(columns: dict[str, Any]) -> Counter[str]:
    """Count rows of `logical_messages` by KINDS."""
    reasons = columns["reason"]
    some = reasons.drop_null().to_pylist()
    found = Counter(_KINDS.get(reason, "faulty") for reason in some)
    return found + Counter(whole=len(reasons) - len(some))
