"""``headwater inspect``: what packets say, for people and for programs."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headwater import errors
from headwater.mqtt import decode, decode_server, decode_server5, spec, spec31
from headwater.mqtt.decode import Packet
from headwater.mqtt.decode5 import Packet5
from headwater.mqtt.decode_server import Connect, connect, next_filter
from headwater.names5 import code_name
from headwater_host.errors import REFUSALS
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_host.inspect.mqtt5 import FIELDS as FIELDS_5
from headwater_host.malformed import MalformedError as MalformedError
from headwater_host.topics import check_name

#: The names of the packet types (MQTT 5.0, table 2-1).
NAMES = (
    "",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

#: What is known of a frame: names and values that JSON can hold; ``type`` comes first.
Fields = dict[str, Any]
#: A frame: where it begins, how long it is, what it says.
Frame = tuple[int, int, Fields]


def _frames(
    p: Packet, read: Callable[[Any, int, int], int], fields: dict[int, Callable[[Any], Fields]]
) -> Iterator[Frame]:
    data = p.buf
    at = 0
    while at < len(data):
        stop = read(p, at, len(data))
        if stop < 0:
            raise MalformedError(stop, p.bad_at)
        if stop == decode.MORE:
            raise MalformedError(errors.E_TRUNCATED, len(data))
        yield at, stop - at, {"type": NAMES[p.kind()]} | fields[p.kind()](p)
        at = stop


def mqtt_frames(data: bytes, version: str = "3.1.1") -> Iterator[Frame]:
    """The control packets in ``data``, of both directions. Raises MalformedError behind the last good one.

    When the input ends inside a packet the reason is ``truncated`` and the offset is the input's length.
    """
    return VERSIONS[version](data)


def _frames_31(data: bytes) -> Iterator[Frame]:
    p = Packet(data, check_name)
    p.flags = spec31.FLAGS
    return _frames(p, _packet_31, _MQTT | {spec.CONNECT: lambda p: _connect_fields(p, spec31.PROTOCOL)})


def _packet_31(p: Packet, at: int, end: int) -> int:
    return decode_server.packet(p, at, end, _DECODERS_31)


def _connect_31(p: Packet) -> int:
    return connect(p, Connect((spec31.PROTOCOL,)))


_DECODERS_31 = (
    *decode_server.DECODERS[: spec.CONNECT],
    _connect_31,
    *decode_server.DECODERS[spec.CONNECT + 1 :],
)
#: How the packets of each version are taken apart.
VERSIONS: dict[str, Callable[[bytes], Iterator[Frame]]] = {
    "3.1": _frames_31,
    "3.1.1": lambda data: _frames(Packet(data, check_name), decode_server.packet, _MQTT),
    "5": lambda data: _frames(Packet5(data, check_name), decode_server5.packet, FIELDS_5),
}


def _text(p: Packet, at: int, end: int) -> str:
    return str(p.buf[at:end], "utf-8")


def _connect_fields(p: Packet, protocol: bytes = spec.PROTOCOL) -> Fields:
    c = Connect((protocol,))
    connect(p, c)
    will = None
    if c.will_topic_at >= 0:
        will = {
            "topic": _text(p, c.will_topic_at, c.will_topic_end),
            "message": bytes(p.buf[c.will_payload_at : c.will_payload_end]).hex(),
            "qos": c.will_qos(),
            "retain": c.will_retain(),
        }
    return {
        "protocol_name": protocol[2:-1].decode(),
        "protocol_level": c.level,
        "clean_session": c.clean(),
        "keep_alive": c.keep_alive,
        "client_id": _text(p, c.client_id_at, c.client_id_end),
        "will": will,
        "user_name": _text(p, c.user_at, c.user_end) if c.user_at >= 0 else None,
        "password": bytes(p.buf[c.password_at : c.password_end]).hex() if c.password_at >= 0 else None,
    }


def _connack_fields(p: Packet) -> Fields:
    return {"session_present": p.session_present, "return_code": p.code}


def _publish_fields(p: Packet) -> Fields:
    return {
        "dup": p.dup(),
        "qos": p.qos(),
        "retain": p.retain(),
        "topic": p.topic_text(),
        "packet_id": p.packet_id or None,
        "payload": p.payload_bytes().hex(),
    }


def _id_fields(p: Packet) -> Fields:
    return {"packet_id": p.packet_id}


def _filters(p: Packet) -> Iterator[tuple[str, int]]:
    qos = next_filter(p)
    while qos >= 0:
        yield _text(p, p.topic_at, p.topic_end), qos
        qos = next_filter(p)


def _subscribe_fields(p: Packet) -> Fields:
    return _id_fields(p) | {"filters": [{"filter": name, "qos": qos} for name, qos in _filters(p)]}


def _unsubscribe_fields(p: Packet) -> Fields:
    return _id_fields(p) | {"filters": [name for name, _ in _filters(p)]}


def _suback_fields(p: Packet) -> Fields:
    return _id_fields(p) | {"return_codes": list(p.buf[p.payload_at : p.end])}


def _no_fields(p: Packet) -> Fields:
    return {}


_MQTT: dict[int, Callable[[Packet], Fields]] = {
    spec.CONNECT: _connect_fields,
    spec.CONNACK: _connack_fields,
    spec.PUBLISH: _publish_fields,
    spec.PUBACK: _id_fields,
    spec.PUBREC: _id_fields,
    spec.PUBREL: _id_fields,
    spec.PUBCOMP: _id_fields,
    spec.SUBSCRIBE: _subscribe_fields,
    spec.SUBACK: _suback_fields,
    spec.UNSUBSCRIBE: _unsubscribe_fields,
    spec.UNSUBACK: _id_fields,
    spec.PINGREQ: _no_fields,
    spec.PINGRESP: _no_fields,
    spec.DISCONNECT: _no_fields,
}


def _mqtt(data: bytes, args: argparse.Namespace) -> Iterator[Frame]:
    return mqtt_frames(data, args.version or "3.1.1")


def _fmq(data: bytes, args: argparse.Namespace) -> Iterator[Frame]:
    from headwater_host.inspect import fmq as inspect_fmq

    return inspect_fmq.frames(data)


def _fmq_values(data: bytes, args: argparse.Namespace) -> Iterator[Frame]:
    from headwater_host.inspect import fmq as inspect_fmq

    return inspect_fmq.values(data)


def _mq(data: bytes, args: argparse.Namespace) -> Iterator[Frame]:
    from headwater_host.inspect import mq as inspect_mq

    return inspect_mq.chain(data, inspect_mq.Writing(_BIG[args.order], args.ccsid), args.format)


def _mqmde(data: bytes, args: argparse.Namespace) -> Iterator[Frame]:
    from headwater_host.inspect import mq as inspect_mq

    return inspect_mq.extension(data, inspect_mq.Writing(_BIG[args.order], args.ccsid))


_MQ = ("mq", "mqmde")
_BIG = {None: None, "big": True, "little": False}
#: How the frames of each protocol are taken apart, by what the options say.
PROTOCOLS: dict[str, Callable[[bytes, argparse.Namespace], Iterator[Frame]]] = {
    "mqtt": _mqtt,
    "fmq": _fmq,
    "fmq-value": _fmq_values,
    "mq": _mq,
    "mqmde": _mqmde,
}
#: Options that not every protocol has: whose they are.
_OPTIONS = {
    "version": ("MQTT's", ("mqtt",)),
    "order": ("IBM MQ's", _MQ),
    "ccsid": ("IBM MQ's", _MQ),
    "format": ("for a chain of IBM MQ's headers (mq)", ("mq",)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Show what packets say, one line each; packets of both directions may follow each other. Malformed or "
        "cut short: the packets before it are shown, then what is wrong and where, and the exit code is 1."
    )
    parser.add_argument("--protocol", choices=sorted(PROTOCOLS), default="mqtt", help="default: mqtt")
    parser.add_argument(
        "--version", choices=sorted(VERSIONS), help="of MQTT, the only protocol with versions; default: 3.1.1"
    )
    parser.add_argument(
        "--order", choices=("big", "little"), help="of IBM MQ's first header; default: as it makes sense"
    )
    parser.add_argument(
        "--ccsid",
        type=_ccsid,
        metavar="N",
        help="character set of IBM MQ's first header: 37, 500, 1047 and 1140 are EBCDIC, all others ASCII; "
        "default: as it makes sense",
    )
    parser.add_argument(
        "--format",
        type=_format,
        metavar="NAME",
        help="what a chain (mq) begins with, MQHMDE for instance; default: as its StrucId says",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--hex",
        metavar="HEX",
        help="the bytes in hexadecimal, blanks allowed; - reads them from standard input",
    )
    source.add_argument(
        "--file", metavar="FILE", help="a file with the bytes as they are; - reads standard input"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per frame and line")


def _ccsid(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 65535")
    return int(text)


def _format(text: str) -> str:
    if not (1 <= len(text) <= 8 and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a Format: 1 to 8 characters of ASCII")
    return text


def _input(args: argparse.Namespace) -> bytes:
    if args.file is not None:
        if args.file == "-":
            return sys.stdin.buffer.read()
        try:
            return Path(args.file).read_bytes()
        except OSError as error:
            raise CommandError(f"cannot read {args.file}: {error.strerror}", USAGE) from error
    text = args.hex
    if text == "-":
        text = sys.stdin.buffer.read().decode("ascii", "replace")
    digits = "".join(text.split())
    for at, digit in enumerate(digits):
        if digit not in "0123456789abcdefABCDEF":
            raise CommandError(f"--hex: {digit!r} at position {at} is not a hexadecimal digit", USAGE)
    if len(digits) % 2:
        raise CommandError(f"--hex: {len(digits)} digits are not whole bytes; one is missing", USAGE)
    return bytes.fromhex(digits)


def run(args: argparse.Namespace) -> int:
    """Print the frames; 1 when the input is malformed."""
    for name, (whose, protocols) in _OPTIONS.items():
        if getattr(args, name) is not None and args.protocol not in protocols:
            raise CommandError(f"--{name} is {whose}: {args.protocol} has none", USAGE)
    data = _input(args)
    line = _line
    if args.protocol in _MQ:
        from headwater_host.inspect.mq import line
    try:
        for at, size, fields in PROTOCOLS[args.protocol](data, args):
            print(json.dumps(fields, ensure_ascii=False) if args.json else line(at, size, fields))
    except MalformedError as error:
        if args.json:
            print(json.dumps({"error": error.shown()}))
        else:
            print(f"{error.offset:>8}  malformed: {error.description}")
        return FAILED
    return OK


def _line(at: int, size: int, fields: Fields) -> str:
    rest = "  ".join(f"{name}={_shown(name, value)}" for name, value in fields.items() if name != "type")
    return f"{at:>8}  {size:>6} bytes  {fields['type']:<11}  {rest}".rstrip()


def _shown(name: str, value: object) -> str:
    """A field's value for people: codes with their names."""
    if name == "return_codes" and isinstance(value, list):
        return f"[{', '.join('128 (failure)' if code == spec.SUBSCRIBE_FAILED else str(code) for code in value)}]"
    if name == "return_code" and value in REFUSALS:
        return f"{value} ({REFUSALS[value]})"
    if name == "reason" and isinstance(value, int) and value:
        return f"{value} ({code_name(value, 0)})"
    return json.dumps(value, ensure_ascii=False)
