"""``headwater inspect``: print the packets, frames or headers in a byte string."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from headwater.mqtt import spec
from headwater.names5 import code_name
from headwater_host.errors import REFUSALS
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_host.inspect.mqtt import VERSIONS, Fields, Frame, mqtt_frames
from headwater_host.malformed import MalformedError


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
#: The decoder of each protocol.
PROTOCOLS: dict[str, Callable[[bytes, argparse.Namespace], Iterator[Frame]]] = {
    "mqtt": _mqtt,
    "fmq": _fmq,
    "fmq-value": _fmq_values,
    "mq": _mq,
    "mqmde": _mqmde,
}
#: Options that only some protocols have.
_OPTIONS = {
    "version": ("mqtt",),
    "order": _MQ,
    "ccsid": _MQ,
    "format": ("mq",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Decode packets of both directions and print one line for each. Stops at malformed or truncated input with "
        "its reason and offset, and exit code 1."
    )
    parser.add_argument(
        "--protocol", choices=sorted(PROTOCOLS), default="mqtt", help="Protocol; default: mqtt"
    )
    parser.add_argument("--version", choices=sorted(VERSIONS), help="MQTT version; default: 3.1.1")
    parser.add_argument(
        "--order", choices=("big", "little"), help="Byte order of the first IBM MQ header; default: automatic"
    )
    parser.add_argument(
        "--ccsid",
        type=_ccsid,
        metavar="N",
        help="Character set of the first IBM MQ header; default: automatic",
    )
    parser.add_argument(
        "--format",
        type=_format,
        metavar="NAME",
        help="Format of the first header of mq; default: automatic",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--hex",
        metavar="HEX",
        help="Input in hexadecimal; - reads standard input",
    )
    source.add_argument("--file", metavar="FILE", help="File with the input; - reads standard input")
    parser.add_argument("--json", action="store_true", help="Print a JSON object for each frame")


def _ccsid(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 65535")
    return int(text)


def _format(text: str) -> str:
    if not (1 <= len(text) <= 8 and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a Format: 1 to 8 ASCII characters")
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
        raise CommandError(f"--hex: {len(digits)} digits; an even number is needed", USAGE)
    return bytes.fromhex(digits)


def run(args: argparse.Namespace) -> int:
    """Print the frames. Return 1 if the input is malformed."""
    for name, protocols in _OPTIONS.items():
        if getattr(args, name) is not None and args.protocol not in protocols:
            raise CommandError(f"--{name} needs --protocol {' or '.join(protocols)}", USAGE)
    data = _input(args)
    line = _line
    if args.protocol in _MQ:
        from headwater_host.cli.inspect_mq import line
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
    """Format the value of a field; add the names of codes."""
    if name == "return_codes" and isinstance(value, list):
        return f"[{', '.join('128 (failure)' if code == spec.SUBSCRIBE_FAILED else str(code) for code in value)}]"
    if name == "return_code" and value in REFUSALS:
        return f"{value} ({REFUSALS[value]})"
    if name == "reason" and isinstance(value, int) and value:
        return f"{value} ({code_name(value, 0)})"
    return json.dumps(value, ensure_ascii=False)
