"""IBM's own package, ``ibmmq``, over a client library that is made here and calls Python.

The package's compiled part asks the system for ``libmqm_r.so``. A C compiler makes one whose MQI functions hand their
arguments to whoever ``answer`` was called with last.
"""

import ctypes
import functools
import itertools
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Protocol

_LONG = ctypes.c_int32
_P = ctypes.c_void_p
_LONGP = ctypes.POINTER(ctypes.c_int32)
# The arguments in front of completion and reason code: i an MQLONG, l a pointer to one, p another pointer.
_VERBS = {
    "MQCONNX": "ppl",
    "MQDISC": "l",
    "MQOPEN": "ipil",
    "MQCLOSE": "ili",
    "MQPUT": "iippip",
    "MQGET": "iippipl",
    "MQCMIT": "i",
    "MQBACK": "i",
}
_OTHERS = "BEGIN CB CONN CRTMH CTL DLTMH DLTMP INQ INQMP PUT1 SET SETMP STAT SUB SUBRQ"
_C_TYPES: dict[str, str] = {"i": "int", "l": "int *", "p": "void *"}
_CTYPES: dict[str, Any] = {"i": _LONG, "l": _LONGP, "p": _P}

OK, WARNING, FAILED = 0, 1, 2


class Answers(Protocol):
    """Who answers calls of the MQI."""

    #: The handle before the first of its connections.
    first: int

    def call(self, verb: str, arguments: list[Any]) -> tuple[int, int]:
        """Completion and reason code of a call."""


#: Of connections, whoever answers.
handles = itertools.count(1)
_current: Answers | None = None
_kept: list[Any] = []


def answer(who: Answers | None) -> None:
    """Calls go there from now on; with None there is no queue manager."""
    global _current
    _current = who


def _source() -> str:
    """The library in C: each verb calls what it was given."""
    lines = ["#include <stdlib.h>"]
    for verb, letters in _VERBS.items():
        types = [_C_TYPES[letter] for letter in letters + "ll"]
        names = [f"a{number}" for number in range(len(types))]
        arguments = ", ".join(f"{kind} {name}" for kind, name in zip(types, names, strict=True))
        lines.append(f"void (*to_{verb})({', '.join(types)});")
        lines.append(f"void {verb}({arguments}) {{ to_{verb}({', '.join(names)}); }}")
    lines += [f"void MQ{name}(void) {{ abort(); }}" for name in _OTHERS.split()]
    return "\n".join(lines)


def _into(verb: str, *arguments: Any) -> None:
    *given, completion, reason = arguments
    # What a connection of an earlier recorder still does when Python lets go of it.
    late = _current is None or (verb != "MQCONNX" and _handle(given[0]) < _current.first)
    completion[0], reason[0] = (FAILED, 2018) if late or _current is None else _current.call(verb, given)


def _handle(given: Any) -> int:
    number: int = given if isinstance(given, int) else given[0]
    return number


@functools.cache
def package() -> Any:
    """IBM's package over the library, which is made once per process."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "mqm.c"), Path(folder, "libmqm_r.so")
        source.write_text(_source())
        name = "-Wl,-soname,libmqm_r.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", name, "-o", made, source], check=True)
        library = ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL)
    for verb, letters in _VERBS.items():
        kind = ctypes.CFUNCTYPE(None, *(_CTYPES[letter] for letter in letters + "ll"))
        callback = kind(functools.partial(_into, verb))
        _kept.append(callback)
        _P.in_dll(library, f"to_{verb}").value = ctypes.cast(callback, _P).value
    import ibmmq

    return ibmmq
