"""``headwater inspect``: print the packets, frames or headers in a byte string."""

import argparse
import json
from collections.abc import Callable, Iterator

from headwater.mqtt import spec
from headwater.names5 import code_name
from headwater_host.cli.options import FLAG, content, integer, option
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
_OPTIONS = {"version": ("mqtt",), "order": _MQ, "ccsid": _MQ, "format": ("mq",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Decode packets of both directions and print one line for each. Stops at malformed or truncated input with "
        "its reason and offset, and exit code 1."
    )
    option(parser, "--protocol", "Protocol; default: mqtt", choices=sorted(PROTOCOLS), default="mqtt")
    option(parser, "--version", "MQTT version; default: 3.1.1", choices=sorted(VERSIONS))
    option(
        parser,
        "--order",
        "Byte order of the first IBM MQ header; default: automatic",
        choices=("big", "little"),
    )
    option(
        parser, "--ccsid", "Character set of the first IBM MQ header; default: automatic", integer(0, 65535)
    )
    option(
        parser,
        "--format",
        "Format of the first header of mq; default: automatic",
        type=_format,
        metavar="NAME",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    option(source, "--hex", "Input in hexadecimal; - reads standard input", metavar="HEX")
    option(source, "--file", "File with the input; - reads standard input", metavar="FILE")
    option(parser, "--json", "Print a JSON object for each frame", FLAG)


def _format(text: str) -> str:
    if not (1 <= len(text) <= 8 and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a Format: 1 to 8 ASCII characters")
    return text


def _input(args: argparse.Namespace) -> bytes:
    if args.file is not None:
        return content(args.file)
    text = content("-").decode("ascii", "replace") if args.hex == "-" else args.hex
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
