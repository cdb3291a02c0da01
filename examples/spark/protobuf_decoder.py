"""Decode messages of Protobuf.

    headwater pipeline run --capture LOG --out DIR --decoder 'plant/+/pb=protobuf_decoder:decode'

`Reading` stands for a class of a module that protoc has made:

    message Reading { string board = 1; uint32 boot = 2; uint32 seq = 3; double celsius = 4; optional string note = 5; }
"""

from typing import Any

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto


def message_class(package: str, name: str, messages: list[dict[str, Any]]) -> Any:
    """Return the class of a message that is described in Python."""
    described = {"name": f"{package}.proto", "package": package, "messageType": messages}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(json_format.ParseDict(described, FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def field(name: str, number: int, kind: str, label: str = "LABEL_OPTIONAL", **more: str) -> dict[str, Any]:
    return {"name": name, "number": number, "type": kind, "label": label, **more}


Reading = message_class(
    "plant",
    "Reading",
    [
        {
            "name": "Reading",
            "field": [
                field("board", 1, "TYPE_STRING"),
                field("boot", 2, "TYPE_UINT32"),
                field("seq", 3, "TYPE_UINT32"),
                field("celsius", 4, "TYPE_DOUBLE"),
                field("note", 5, "TYPE_STRING"),
            ],
        }
    ],
)


def decode(payload: bytes) -> dict[str, Any]:
    reading = Reading.FromString(payload)
    return {described.name: value for described, value in reading.ListFields()}
