"""The rows of the data source's views: columns of Arrow record batches from ranges of the log.

Imports the decoders late, so that Spark finds the format fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headwater_host.capture.problem import Problem
from headwater_spark.options import ReadOptions
from headwater_spark.plan import Range
from headwater_spark.tables import BADBLOCKS, DECODED, FRAMES, POSITIONS, VIEWS

if TYPE_CHECKING:
    from headwater_spark import fmq, mqtt
    from headwater_spark.columns import Batch
    from headwater_spark.part import Texts


def record_batches(
    options: ReadOptions, columns: list[str], ranges: list[Range], made: list[dict[str, Any]]
) -> Iterator[Any]:
    """Yield the rows of a view in some ranges of the log as Arrow record batches, after the rows in `made`."""
    import pyarrow as pa

    from headwater_spark.columns import Batch, read, scan

    pa.set_cpu_count(1)
    view = VIEWS[options.view]
    schema = pa.schema([view.plain.field(name) for name in columns])
    if view in (BADBLOCKS, POSITIONS):
        problems = (found for _, found in scan(ranges) if isinstance(found, Problem))
        rows = [*made, *(problem._asdict() for problem in problems)]
        if rows:
            yield pa.RecordBatch.from_pylist([{name: row[name] for name in columns} for row in rows], schema)
        return
    make = _VIEW_COLUMNS[view.name]
    for found in read(ranges, options.batch_rows):
        if isinstance(found, Batch):
            found = found.within(options.span)
            if not len(found):
                continue
            parts = list(make(found, columns))
            yield _in_order(
                [rows for rows, _ in parts], [_record_batch(chosen, schema) for _, chosen in parts]
            )
        else:
            # The view badblocks has this row; for other views, print it to the executor's log.
            print(f"headwater: skipped {found}", file=sys.stderr)


def _plain(column: Any, type_: Any) -> Any:
    return column if column.type == type_ else column.cast(type_)


def _record_batch(columns: Mapping[str, Any], schema: Any) -> Any:
    import pyarrow as pa

    return pa.record_batch([_plain(columns[field.name], field.type) for field in schema], schema)


def _in_order(rows: list[Any], batches: list[Any]) -> Any:
    """Combine batches of some rows each into one, in the order of the rows."""
    import numpy as np
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    together = pa.Table.from_batches(batches).take(pa.array(np.argsort(np.concatenate(rows))))
    (batch,) = together.combine_chunks().to_batches()
    return batch


_Part = tuple[Any, Mapping[str, Any]]


def _frames(batch: Batch, names: list[str]) -> Iterator[_Part]:
    from headwater_spark.task import frame_columns

    yield None, frame_columns(batch, names)


def _decoded(batch: Batch, names: list[str]) -> Iterator[_Part]:
    """Yield the records of each version of a protocol, with their row numbers."""
    import pyarrow as pa

    from headwater_spark.task import FMQ, MQTT, by_version, frame_columns

    makers = {MQTT: _mqtt, FMQ: _fmq}
    schema = DECODED.plain
    for protocol, version, rows, some in by_version(batch):
        makes = {} if protocol is None else makers[protocol](some, version)
        found = frame_columns(some, names)
        found |= {name: makes[name]() for name in names if name in makes}
        found |= {name: pa.nulls(len(some), schema.field(name).type) for name in names if name not in found}
        yield rows, found


_Columns = dict[str, Callable[[], Any]]


def _mqtt(batch: Batch, level: int) -> _Columns:
    import pyarrow as pa

    from headwater.reasons import REASONS
    from headwater_spark import mqtt

    packets = mqtt.decode(batch.data, batch.starts, level)
    return {
        **_common(packets, packets.publish, REASONS),
        "packet_id": lambda: pa.array(packets.packet_id, mask=_not(packets.publish & (packets.qos > 0))),
        **{name: partial(packets.properties.get, name) for name in packets.properties},
    }


def _fmq(batch: Batch, version: int) -> _Columns:
    import numpy as np
    import pyarrow as pa

    from headwater.fmq.names import REASONS
    from headwater_spark import fmq

    packets = fmq.decode(batch.data, batch.starts)
    good = packets.error == 0
    known = good & ~packets.odd
    return _common(packets, packets.publish, REASONS) | {
        "tags": lambda: packets.tags,
        "message_id": lambda: packets.id,
        "process": lambda: pa.array(packets.process, mask=_not(known)),
        "thread": lambda: pa.array(packets.thread, mask=_not(known)),
        "id_type": lambda: pa.array(packets.id_type.astype(np.int16), mask=_not(good)),
        "id_ns": lambda: pa.array(packets.made_ns, mask=_not(known)),
    }


def _common(packets: mqtt.Packets | fmq.Packets, publish: Any, texts: Texts) -> _Columns:
    import numpy as np
    import pyarrow as pa

    wrong = packets.error != 0
    codes = sorted(texts)
    return {
        "kind": lambda: pa.array(packets.kind.astype(np.int16)),
        "dup": lambda: pa.array(packets.dup, mask=_not(publish)),
        "qos": lambda: pa.array(packets.qos.astype(np.int16), mask=_not(publish)),
        "retain": lambda: pa.array(packets.retain, mask=_not(publish)),
        "topic": lambda: packets.topic,
        "payload": lambda: packets.payload,
        "reason": lambda: pa.DictionaryArray.from_arrays(
            pa.array(
                np.searchsorted(codes, packets.error).clip(max=len(codes) - 1).astype(np.int32), mask=~wrong
            ),
            pa.array([texts[code][0] for code in codes]),
        ),
        "error_at": lambda: pa.array(packets.error_at, mask=~wrong),
    }


def _not(where: Any) -> Any:
    """Return a mask of null values, or None if nothing is null, which is faster."""
    return None if where.all() else ~where


_VIEW_COLUMNS: dict[str, Callable[[Batch, list[str]], Iterator[_Part]]] = {
    FRAMES.name: _frames,
    DECODED.name: _decoded,
}
