"""Install components on a board, and remove them.

A record on the board names the files of the last installation. It is written before the first file, marked as
incomplete, and again after the last one: so an interrupted installation is noticed, repeated and removable.
"""

import ast
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headwater_host.board.errors import BoardError, full
from headwater_host.board.repl import Board

LIB = "/lib"
#: Directories on a board that belong to headwater.
OURS = (f"{LIB}/headwater", f"{LIB}/headwater_board")
RECORD = f"{LIB}/headwater-installed.json"
#: Files that headwater's modules write on the board: settings, boot number, addresses, the slot of updates.
_STATE = (
    "/headwater.json",
    "/headwater.boot.0",
    "/headwater.boot.1",
    "/headwater-addresses.json",
    "/headwater.slot",
    "/headwater.slot.new",
)
#: The slots of updates, if there is a file that names one.
_SLOTS = ("/a", "/b")
#: Called with the name of a file, its bytes written so far, and its size.
Progress = Callable[[str, int, int], object]

# Prints (path, (SHA-256, size)) of the files below ROOTS.
_LIST = """
import os, hashlib, binascii
def hash_of(path, buf=bytearray(512)):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            n = file.readinto(buf)
            if not n:
                return binascii.hexlify(digest.digest()).decode()
            digest.update(buf if n == len(buf) else buf[:n])
def walk(path):
    try:
        if not os.stat(path)[0] & 0x4000:
            print("(%r, (%r, %d))," % (path, hash_of(path), os.stat(path)[6]))
            return
    except OSError:
        return
    for entry in list(os.ilistdir(path)):
        walk(path + "/" + entry[0])
for root in ROOTS:
    walk(root)
"""
#: Blocks of littlefs for a directory, and for the record while it replaces the one before.
_FOLDER_BLOCKS, _RECORD_BLOCKS = 2, 2
# Prints the block size, the blocks and the free blocks of the file system.
_ROOM = "import os\n_s = os.statvfs('/')\nprint(_s[0], _s[2], _s[3])"
# Removes empty directories below ROOTS.
_PRUNE = """
import os
def prune(path):
    try:
        for entry in list(os.ilistdir(path)):
            if entry[1] & 0x4000:
                prune(path + "/" + entry[0])
        os.rmdir(path)
    except OSError:
        pass
for root in ROOTS:
    prune(root)
"""


@dataclass(frozen=True)
class Record:
    """The record of an installation: version and names of the components, and the SHA-256 of each file by name."""

    version: str = ""
    components: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    #: True if the installation was finished.
    complete: bool = True


def hash_of(data: bytes) -> str:
    """Return the SHA-256 of data as the board prints it."""
    return hashlib.sha256(data).hexdigest()


def read_record(board: Board) -> Record:
    """Return the record of the last installation; an empty one if there is none."""
    try:
        found = json.loads(board.get(RECORD))
        return Record(found["version"], found["components"], found["files"], found["complete"])
    except FileNotFoundError:
        return Record()
    except (ValueError, LookupError, TypeError):
        return Record(complete=False)


def hashes(board: Board, roots: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return SHA-256 and size of each of the files `roots`, or below the directories `roots`, by name."""
    listing = board.exec(f"ROOTS = {list(roots)!r}\n{_LIST}")
    return dict(ast.literal_eval(f"[{listing}]"))


def room(board: Board) -> tuple[int, int]:
    """Return the block size and the number of free blocks of the board's file system."""
    block, blocks, free = map(int, board.exec(_ROOM).split())
    # littlefs counts shared blocks twice, so that a full one can have less than 0 free: 2^32 - 1.
    return block, free if free <= blocks else 0


def synchronise(
    board: Board,
    files: Mapping[str, bytes],
    roots: Sequence[str] = OURS,
    progress: Progress = lambda name, written, size: None,
    begin: Callable[[], object] = lambda: None,
    more: Iterable[int] = (),
) -> tuple[list[str], list[str]]:
    """Make the directories `roots` of the board contain exactly `files`. Returns the names written and removed.

    `begin` is called before the first change. `more` has the sizes of files that the caller writes afterwards. Raises
    BoardError, without a change, if all of them do not fit.
    """
    wanted = {name: hash_of(content) for name, content in files.items()}
    present = hashes(board, roots)
    stale = sorted(set(present) - set(wanted))
    changed = sorted(name for name in wanted if present.get(name, ("",))[0] != wanted[name])
    more = list(more)
    if changed or stale or more:
        _check_room(board, {name: len(files[name]) for name in changed}, present, stale, more)
    if not changed and not stale:
        return [], []
    begin()
    if stale:
        remove(board, stale, roots)
    for name in changed:
        board.put(name, files[name], functools.partial(progress, name))
    now = {name: found for name, (found, _) in hashes(board, roots).items()}
    if wrong := sorted(name for name in set(now) | set(wanted) if now.get(name) != wanted.get(name)):
        raise BoardError(f"files on the board differ from those sent: {', '.join(wrong)}; repeat the command")
    return changed, stale


def install(
    board: Board,
    version: str,
    components: Sequence[str],
    files: Mapping[str, bytes],
    progress: Progress = lambda name, written, size: None,
    more: Iterable[int] = (),
) -> tuple[list[str], list[str]]:
    """Make `components` the ones of the board; remove all others. Returns the names written and removed.

    `more` has the sizes of files that the caller writes afterwards.
    """
    before = read_record(board)
    record = Record(version, list(components), {name: hash_of(content) for name, content in files.items()})

    def begin() -> None:
        _write_record(board, dataclasses.replace(record, files=before.files | record.files, complete=False))

    done = synchronise(board, files, OURS, progress, begin, more)
    if record != before:
        _write_record(board, record)
    return done


def ours(board: Board) -> tuple[list[str], list[str]]:
    """Return the files that headwater installed, and those of them that were changed since."""
    record = read_record(board)
    if not record.complete and not record.files:
        raise BoardError(f"{RECORD} on the board is damaged: repeat `headwater board install` first")
    present = hashes(board, list(record.files))
    # An interrupted installation leaves half-written files.
    changed = [
        name for name, (found, _) in present.items() if record.complete and found != record.files[name]
    ]
    return sorted(present), sorted(changed)


def state(board: Board) -> list[str]:
    """Return the files that headwater's modules wrote."""
    found = hashes(board, _STATE)
    if "/headwater.slot" in found:
        found |= hashes(board, _SLOTS)
    return list(found)


def remove(board: Board, names: Sequence[str], roots: Sequence[str] = OURS) -> None:
    """Remove files, and directories below `roots` that are empty then."""
    for name in names:
        board.remove(name)
    board.exec(f"ROOTS = {list(roots)!r}\n{_PRUNE}")


def uninstall(board: Board, names: Sequence[str]) -> None:
    """Remove installed files, and with the last one the record."""
    slots = [slot for slot in _SLOTS if any(name.startswith(f"{slot}/") for name in names)]
    remove(board, names, (*OURS, *slots))
    record = read_record(board)
    if record.files and not hashes(board, list(record.files)):
        board.remove(RECORD)


def _write_record(board: Board, record: Record) -> None:
    board.replace(RECORD, json.dumps(dataclasses.asdict(record)).encode())


def _check_room(
    board: Board,
    changed: Mapping[str, int],
    present: Mapping[str, tuple[str, int]],
    stale: Sequence[str],
    more: Iterable[int],
) -> None:
    """Raise BoardError if files of these sizes do not fit, after the stale ones are removed."""
    block, free = room(board)

    def blocks(sizes: Iterable[int]) -> int:
        return sum(-(-size // block) for size in sizes)

    folders = {name.rpartition("/")[0] for name in changed} - {name.rpartition("/")[0] for name in present}
    freed = blocks(present[name][1] for name in present.keys() & {*changed, *stale})
    wanted = blocks(changed.values()) + blocks(more) - freed + _FOLDER_BLOCKS * len(folders) + _RECORD_BLOCKS
    if wanted > free:
        raise full(wanted * block, free * block)
