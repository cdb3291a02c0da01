"""Take malformed frames and refused messages out of the quarantine, to decode them again.

The quarantine names the frames, which are in the table `frames`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater_spark import delta
from headwater_spark.arrow import Bools
from headwater_spark.columns import Stored
from headwater_spark.delta import Change
from headwater_spark.part import BAD_MQMDE, DECODER_FAILED, IDENTITY_CONFLICT
from headwater_spark.place import Place
from headwater_spark.stored import as_written
from headwater_spark.table_files import File, Writer, open_parquet
from headwater_spark.tables import FRAMES, PARTITION, QUARANTINE

#: The name of a batch of this kind.
REQUARANTINE = "requarantine"
# Decoding does not change these.
_FINAL = (IDENTITY_CONFLICT, BAD_MQMDE)
_PLACE = ["file", "offset", "record"]
_PART_ROWS = 200_000

_Place = tuple[str, int, int]


@dataclass
class Taken:
    """Frames that were in quarantine, as parts to decode, and the change of the quarantine without them."""

    partitions: list[list[Stored]] = field(default_factory=list)
    change: Change = field(default_factory=Change)
    count: int = 0
    size: int = 0
    first_ns: int = 0
    last_ns: int = 0


def take(out: Place, files: Sequence[File], number: int, work: Path, filters: Sequence[str]) -> Taken:
    """Take the frames and messages in some files of the quarantine whose frame is in the table `frames`.

    `work` is a directory for the frames, `number` that of the batch. Messages whose decoder failed are taken if it was
    that of one of the `filters`.
    """
    taken = Taken()
    rows: dict[str, Any] = {}
    places: dict[Any, set[_Place]] = defaultdict(set)
    for file in files:
        if file.date is not None:  # blocks have no time
            rows[file.path] = open_parquet(out / QUARANTINE.name / file.path).read()
            places[file.date] |= set(
                _places(rows[file.path].filter(pa.array(_again(rows[file.path], filters))))
            )
    found: set[_Place] = set()
    for date, some in sorted(places.items()):
        if some:
            found |= _write_frames(out, date, some, work, taken)
    label = f"{number:06d}-q"
    for path, table in rows.items():
        mine = _again(table, filters) & np.array([place in found for place in _places(table)], np.bool_)
        if not mine.any():
            continue
        taken.count += int(np.count_nonzero(mine))
        taken.change.remove.append(path)
        with Writer(QUARANTINE, out, label) as writer:
            writer.write(as_written(table.filter(pa.array(~mine)), QUARANTINE))
        taken.change.add += writer.files
    return taken


def _again(table: Any, filters: Sequence[str]) -> Bools:
    """Return which rows of the quarantine are decoded again."""
    kept = pc.or_(pc.equal(table["kind"], "block"), pc.is_in(table["reason"], pa.array(_FINAL)))
    result: Bools = ~kept.to_numpy(zero_copy_only=False)
    failed = pc.equal(table["reason"], DECODER_FAILED).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(failed).tolist():
        detail = table["detail"][row].as_py()
        result[row] = any(detail.startswith(f"{one}: ") for one in filters)
    return result


def _places(table: Any) -> Iterable[_Place]:
    return zip(*(table[name].to_pylist() for name in _PLACE), strict=True)


def _write_frames(out: Place, date: str, places: set[_Place], work: Path, taken: Taken) -> set[_Place]:
    """Write the frames of a date at some places as parts. Returns the places that were found."""
    keys = pa.table([pa.array(column) for column in zip(*sorted(places), strict=True)], _PLACE)
    condition = (
        (pc.field(PARTITION) == pa.scalar(np.datetime64(date, "D").astype(object)))
        & pc.field("file").isin(pc.unique(keys["file"]))
        & pc.field("offset").isin(pc.unique(keys["offset"]))
    )
    frames = delta.dataset(out, FRAMES.name).to_table(columns=FRAMES.names, filter=condition)
    mine = [k for k, place in enumerate(_places(frames)) if place in places]
    frames = frames.take(pa.array(mine, pa.int64())).sort_by([(name, "ascending") for name in _PLACE])
    work.mkdir(exist_ok=True)
    for first in range(0, frames.num_rows, _PART_ROWS):
        part = frames.slice(first, _PART_ROWS)
        index = len(taken.partitions)
        path = work / f"again-{index:06d}.parquet"
        pq.write_table(part, path)
        times = part["time_ns"].to_numpy()
        span = (int(times.min()), int(times.max()))
        taken.first_ns = min(taken.first_ns, span[0]) if taken.partitions else span[0]
        taken.last_ns = max(taken.last_ns, span[1])
        taken.size += part.nbytes
        taken.partitions.append([Stored(str(path), index, 0, part.nbytes)])
    return set(_places(frames))
