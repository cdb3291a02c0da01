"""Proves on MicroPython that an operation allocates nothing. Imported by the ``*_paths.py`` scripts beside it.

An operation is called in three ways, each of which sees what another one misses:

- once, unmeasured, because the first call may set something up;
- many times with the garbage collector off, comparing what is allocated before and after: this finds an allocation
  whatever the code does with exceptions, for instance when it catches the MemoryError of the next way;
- many times under ``micropython.heap_lock()``, where any allocation raises MemoryError: this finds what is allocated
  and freed again in between.

One kind of allocation gets past both. A function whose locals and stack need more than 11 machine words gets its frame
from the heap, and gives it back on return; under the lock it falls back to the C stack. Where the interpreter counts
all allocations (``micropython.mem_total``, on the unix build) such frames are reported: they leave nothing behind, but
they count towards ``gc.threshold()``, and can make the collector run when the heap is full.
"""

import gc

import micropython

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _no_total() -> int:
    return 0


_total = getattr(micropython, "mem_total", _no_total)


def _repeat(fn: "Callable[[], object]", times: int) -> None:
    for _ in range(times):
        fn()


def _open(fn: "Callable[[], object]", times: int, kept: "list[int]") -> None:
    """Call with the heap open: ``kept`` gets the bytes that stay allocated and the bytes allocated in all."""
    gc.collect()
    gc.disable()
    try:
        _repeat(fn, 0)
        used = gc.mem_alloc()
        total = _total()
        _repeat(fn, times)
        total = _total() - total
        used = gc.mem_alloc() - used
    finally:
        gc.enable()
    kept[0] = used
    kept[1] = total


def _locked(fn: "Callable[[], object]", times: int) -> bool:
    """Call with the heap locked: whether that went without MemoryError."""
    clean = True
    gc.collect()
    micropython.heap_lock()
    try:
        _repeat(fn, times)
    except MemoryError:
        clean = False
    finally:
        micropython.heap_unlock()
    return clean


def prove(name: str, fn: "Callable[[], object]", times: int = 100) -> bool:
    """Call ``fn()`` and report what it allocates: ``0 bytes NAME``, or ``FAIL NAME: ...``.

    A line ``frame NAME: N bytes a call`` follows when frames came from the heap. ``fn`` must be able to run
    ``2 * times + 1`` times in a row, each time taking the path that is to be proved. What it returns is dropped.
    """
    fn()
    kept = [0, 0]
    _open(fn, times, kept)
    if kept[0] != 0:
        print(f"FAIL {name}: {kept[0]} bytes in {times} calls")
        return False
    if not _locked(fn, times):
        print(f"FAIL {name}: MemoryError under heap_lock()")
        return False
    print("0 bytes", name)
    if kept[1] != 0:
        print(f"frame {name}: {kept[1] // times} bytes a call")
    return True


class With:
    """A call with an argument; what it binds is bound once."""

    def __init__(self, method: "Callable[[int], object]", argument: int) -> None:
        self._method = method
        self._argument = argument
        self.call = self._call

    def _call(self) -> None:
        self._method(self._argument)


#: The paths of every session, whatever its protocol: name, method, and how many times.
SESSION = (
    ("poll", "poll", 100),
    ("keep-alive", "keep_alive", 100),
    ("large message to a sink", "to_sink", 20),
    ("large message skipped", "skipped", 20),
    ("session refusals", "refusals", 100),
    ("publish again after a cut", "again", 100),
    ("publish again after a cut at PUBREL", "again_at_pubrel", 100),
    ("a repetition is answered", "repetition", 100),
    # The last one, because it attaches a part.
    ("acknowledged by the application", "acknowledged", 100),
)


def prove_session(paths: object) -> None:
    """Prove the paths that every session has: methods of ``paths``."""
    for what in ("publish", "receive"):
        for qos in (0, 1, 2):
            prove("%s qos %d" % (what, qos), With(getattr(paths, what), qos).call)
    for name, method, times in SESSION:
        prove(name, getattr(paths, method), times)
