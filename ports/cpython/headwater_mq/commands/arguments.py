"""Arguments that the subcommands share."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater_host.cli.options import Kind, integer, option
from headwater_host.exits import USAGE, CommandError
from headwater_host.mq import CMQC
from headwater_host.mq.errors import MQMIError
from headwater_mq.attributes import check_name

#: MsgFlags by name, without IBM's prefix.
FLAGS = {
    name.removeprefix("MQMF_"): getattr(CMQC, name)
    for name in (
        *("MQMF_SEGMENTATION_ALLOWED", "MQMF_SEGMENT", "MQMF_LAST_SEGMENT"),
        *("MQMF_MSG_IN_GROUP", "MQMF_LAST_MSG_IN_GROUP"),
    )
}
#: An MQLONG. Its range is the queue manager's to check.
LONG = integer(-(1 << 31), (1 << 31) - 1)


def add_version(group: "argparse._ArgumentGroup") -> None:
    """Add ``--md-version``."""
    text = "MQMD version; 1: groups and segments in an MQMDE; default: 2"
    option(group, "--md-version", text, type=int, choices=(1, 2), default=2)


def queue_name(text: str) -> str:
    """Check the name of a queue."""
    try:
        return check_name(text)
    except MQMIError as error:
        raise argparse.ArgumentTypeError(error.detail) from None


def id_of(text: str) -> bytes:
    """Convert a MsgId, CorrelId or GroupId from hexadecimal."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 24:
        raise argparse.ArgumentTypeError(f"{text!r} is not 24 bytes in hexadecimal")
    return value


#: The kind of an option for a MsgId, CorrelId or GroupId.
ID: Kind = {"type": id_of, "metavar": "HEX"}


def format_of(text: str) -> str:
    """Check a Format."""
    if not (len(text) <= 8 and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a Format: at most 8 characters of ASCII")
    return text


def flags_of(text: str) -> int:
    """Convert names of MsgFlags, separated by commas or bars."""
    value = 0
    for part in text.replace("|", ",").split(","):
        name = part.strip().upper().removeprefix("MQMF_")
        if name and name not in FLAGS:
            raise argparse.ArgumentTypeError(f"{name!r} is not a flag: {', '.join(FLAGS)}")
        value |= FLAGS.get(name, 0)
    return value


def opened(path: "str | Path", mode: str, opener: Callable[[str, int], int] | None = None) -> Any:
    """Open a file for binary I/O. Raises CommandError."""
    try:
        return open(path, mode, opener=opener)
    except OSError as error:
        raise CommandError(f"cannot open {path}: {error.strerror}", USAGE) from error
