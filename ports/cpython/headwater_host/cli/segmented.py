"""pub --segment-size: publish a file in segments."""

import argparse
import io
import os
import stat
from collections.abc import Iterator
from itertools import chain

from headwater.errors import E_TOO_LARGE
from headwater.ibmmq.segments import MOST, GroupIds
from headwater_host.exits import USAGE, CommandError
from headwater_host.mq.CMQC import MQFMT_STRING
from headwater_host.mq.segments import PayloadError, segments

_UTF_8 = 1208


def payloads(args: argparse.Namespace) -> Iterator[bytes]:
    """Yield the payloads to publish. Raises CommandError for a file that cannot be read or that changes.

    If the length of the file is known, the first segment is read at once, so that its errors precede any message.
    """
    file, name = _opened(args)
    made = _whole(file, name, args)
    return chain([next(made)], made) if _length(os.fstat(file.fileno())) is not None else made


def _opened(args: argparse.Namespace) -> tuple[io.FileIO, str]:
    given = None if args.stdin_file or args.file == "-" else args.file
    name = given or "standard input"
    try:
        return io.FileIO(given or 0, closefd=given is not None), name
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}", USAGE) from error


def _length(found: os.stat_result) -> int | None:
    """Return the size of a file; None for pipes and for files that the system generates."""
    return found.st_size or None if stat.S_ISREG(found.st_mode) else None


def _whole(file: io.FileIO, name: str, args: argparse.Namespace) -> Iterator[bytes]:
    """Yield the segments. Each is held until the next is read: the last one needs an unchanged file."""
    size: int = args.segment_size
    before = os.fstat(file.fileno())
    length = _length(before)
    if length is not None:
        # Standard input may be a file that has been read in part.
        length = max(length - file.tell(), 0)
    begun = ""
    held = None
    try:
        with file:
            for payload in segments(file, ids=_ids(args), piece=size, length=length, **_header(args)):
                if held is not None:
                    yield held
                    begun = "; what was sent of it stays incomplete"
                held = payload
            after = os.fstat(file.fileno())
    except PayloadError as error:
        if error.status == E_TOO_LARGE:
            most = MOST // size * size + size
            text = (
                f"{name} is too large: in segments of {size} bytes a message has at most {most} bytes{begun}"
            )
            raise CommandError(text, USAGE) from error
        raise _changed(name, begun) from error
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror or error}{begun}", USAGE) from error
    if length is not None and _what(before) != _what(after):
        raise _changed(name, begun)
    assert held is not None
    yield held


def _what(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _changed(name: str, begun: str) -> CommandError:
    return CommandError(f"{name} has changed while it was read{begun}")


def _ids(args: argparse.Namespace) -> GroupIds:
    name: str = args.id or args.id_prefix or "headwater"
    return GroupIds(name.encode("utf-8", "surrogateescape"), os.urandom(8))


def _header(args: argparse.Namespace) -> dict[str, object]:
    text = (args.format or "").ljust(8).encode()
    return {
        "format": text,
        "encoding": args.encoding or 0,
        "data_ccsid": args.ccsid or (_UTF_8 if text == MQFMT_STRING else 0),
    }
