"""Translate tracebacks of components to the files, lines and functions of the sources.

Components have shortened private names, and their line numbers are those of built files. `names.json` of the same
build has the originals.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: The file that `translate` needs, beside the components.
NAMES = "names.json"
_FRAME_START = b'  File "'
_FRAME = re.compile(r'^(?P<before>\s*File )"(?P<file>[^"]+)", line (?P<line>\d+)(, in (?P<name>\S+))?')
_MESSAGE = re.compile(r"\w*Error: ")
# A class is named before "object", and has no short name; some short names are those of classes.
_QUOTED = re.compile(r"'(?P<name>_?\w+)'(?! object)")
#: A longer line is no frame and no message.
_LONGEST = 1024


def translate(text: str, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a log, with translated tracebacks. `known` is the content of `names.json`."""
    for line in text.splitlines():
        yield _translated(line, known)


class Translator:
    """Translates tracebacks in a stream of output.

    Output passes at once, except lines that may belong to a traceback: these wait for their end.
    """

    def __init__(self, known: Mapping[str, Any], consume: Callable[[bytes], object]) -> None:
        """Pass translated output to `consume`. `known` is the content of `names.json`."""
        self._known = known
        self._consume = consume
        self._line = b""
        self._at_start = True
        self._after_frame = False

    def feed(self, data: bytes) -> None:
        """Translate the next piece of output."""
        ready = b""
        for part in data.splitlines(keepends=True):
            ready += self._take(part)
        if ready:
            self._consume(ready)

    def flush(self) -> None:
        """Pass on the line that still waits."""
        waiting, self._line = self._line, b""
        if waiting:
            self._consume(waiting)

    def _take(self, part: bytes) -> bytes:
        """Return what can be passed on after a part of a line."""
        if self._at_start:
            self._line += part
            ended = part.endswith(b"\n")
            if not ended and len(self._line) < _LONGEST and self._may_be_translated():
                return b""
            line, self._line, self._at_start = self._line, b"", ended
            return self._whole(line) if ended else line
        self._at_start = part.endswith(b"\n")
        return part

    def _may_be_translated(self) -> bool:
        return self._after_frame or self._line.startswith(_FRAME_START) or _FRAME_START.startswith(self._line)

    def _whole(self, line: bytes) -> bytes:
        is_frame = line.startswith(_FRAME_START)
        is_of_traceback = is_frame or self._after_frame
        self._after_frame = is_frame
        if not is_of_traceback:
            return line
        text = line.rstrip(b"\r\n")
        return (
            _translated(text.decode(errors="surrogateescape"), self._known).encode(errors="surrogateescape")
            + (line[len(text) :])
        )


def _translated(line: str, known: Mapping[str, Any]) -> str:
    frame = _FRAME.match(line)
    if frame:
        return _frame(line, frame, known["lines"])
    if _MESSAGE.match(line):
        return _QUOTED.sub(lambda found: _named(found["name"], known["names"]), line)
    return line


def _frame(line: str, frame: re.Match[str], lines: Mapping[str, Any]) -> str:
    file = frame["file"].removeprefix("/lib/").removeprefix("/rom/lib/").replace(".mpy", ".py")
    number = int(frame["line"])
    before = [row for row in lines.get(file, ()) if row[0] <= number]
    if not before:
        return line
    _, source, old, function = max(before, key=lambda row: row[0])
    return f'{frame["before"]}"{source}", line {old}, in {function or "<module>"}'


def _named(name: str, names: Mapping[str, Any]) -> str:
    old = names.get(name)
    return f"'{name}' ({', '.join(old)})" if old else f"'{name}'"
