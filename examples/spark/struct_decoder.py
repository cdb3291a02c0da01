"""Decode records of C structs column by column, with numpy.

    headwater pipeline run --capture LOG --out DIR --decoder 'plant/+/raw=struct_decoder:decode'

The sensor sends ``struct { uint32_t seq; int16_t centidegrees; uint8_t humidity; uint8_t flags; }``, little endian.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark.decoders import columns

RECORD = np.dtype([("seq", "<u4"), ("centidegrees", "<i2"), ("humidity", "u1"), ("flags", "u1")])


@columns
def decode(payloads: pa.BinaryArray) -> Mapping[str, Any]:
    if pc.any(pc.not_equal(pc.binary_length(payloads), RECORD.itemsize)).as_py():
        raise ValueError(f"a record has {RECORD.itemsize} bytes")
    records = np.frombuffer(b"".join(payloads.to_pylist()), RECORD)
    return {
        "seq": pa.array(records["seq"].astype(np.int64)),
        "temperature": pa.array(records["centidegrees"] / 100),
        "humidity": pa.array(records["humidity"]),
        "low_battery": pa.array(records["flags"] & 1 == 1),
    }
