"""Decode Sparkplug B: the metrics of NBIRTH, DBIRTH, NDATA and DDATA.

    headwater pipeline run --capture LOG --out DIR --decoder 'spBv1.0/+/+/#=sparkplug_decoder:decode' \\
        --identity 'board=topic:spBv1.0/+/+/{}/#' --identity boot=value:0

A metric that has only an alias is named `alias/NUMBER`; its name is in the BIRTH message. The sequence number counts
from 0 to 255 and begins again, so it makes no identity: redelivered messages are told apart by their marks.
"""

from typing import Any

from protobuf_decoder import field, message_class

_REPEATED = "LABEL_REPEATED"
Payload = message_class(
    "sparkplug",
    "Payload",
    [
        {
            "name": "Metric",
            "field": [
                field("name", 1, "TYPE_STRING"),
                field("alias", 2, "TYPE_UINT64"),
                field("timestamp", 3, "TYPE_UINT64"),
                field("datatype", 4, "TYPE_UINT32"),
                field("is_historical", 5, "TYPE_BOOL"),
                field("is_transient", 6, "TYPE_BOOL"),
                field("is_null", 7, "TYPE_BOOL"),
                field("int_value", 10, "TYPE_UINT32"),
                field("long_value", 11, "TYPE_UINT64"),
                field("float_value", 12, "TYPE_FLOAT"),
                field("double_value", 13, "TYPE_DOUBLE"),
                field("boolean_value", 14, "TYPE_BOOL"),
                field("string_value", 15, "TYPE_STRING"),
            ],
        },
        {
            "name": "Payload",
            "field": [
                field("timestamp", 1, "TYPE_UINT64"),
                field("metrics", 2, "TYPE_MESSAGE", _REPEATED, typeName=".sparkplug.Metric"),
                field("seq", 3, "TYPE_UINT64"),
                field("uuid", 4, "TYPE_STRING"),
                field("body", 5, "TYPE_BYTES"),
            ],
        },
    ],
)
_VALUES = {"int_value", "long_value", "float_value", "double_value", "boolean_value", "string_value"}
# Signed integers are sent in two's complement: their bits, by data type.
_SIGNED = {1: 8, 2: 16, 3: 32, 4: 64}


def decode(payload: bytes) -> dict[str, Any]:
    message = Payload.FromString(payload)
    return {metric.name or f"alias/{metric.alias}": _value(metric) for metric in message.metrics}


def _value(metric: Any) -> Any:
    if metric.is_null:
        return None
    value = next((value for one, value in metric.ListFields() if one.name in _VALUES), None)
    bits = _SIGNED.get(metric.datatype)
    if bits and isinstance(value, int):
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value
