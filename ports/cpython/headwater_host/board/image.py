"""Update images for boards: a signed manifest and files. ``docs/updates.md`` has the format."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from headwater_host.exits import USAGE, CommandError

MAGIC = b"HWU1"
#: Bytes before the manifest: magic, length of the manifest, HMAC.
HEAD = 38
ID = slice(6, 14)
#: What ``headwater_board.ota.Receiver`` accepts by default.
LARGEST_MANIFEST = 8192
LARGEST_IMAGE = (1 << 24) - (1 << 16)
LONGEST_NAME = 96
SHORTEST_KEY = 16
_FIRMWARE_MAGIC = b"\xe9"
#: Names that the receiver uses itself.
_RESERVED = {"update.hwu", "update.hwu.new", "firmware.at"}
#: Directories and files that no board needs.
_SKIPPED = {"__pycache__", ".git", ".DS_Store"}


def read_key(path: Path) -> bytes:
    """Return a board's key: the file has hexadecimal digits, or the bytes themselves. Raises CommandError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read the key {path}: {error.strerror}", USAGE) from None
    text = data.strip()
    key = bytes.fromhex(text.decode()) if re.fullmatch(rb"(?:[0-9A-Fa-f]{2})+", text) else data
    if len(key) < SHORTEST_KEY:
        raise CommandError(
            f"the key in {path} has {len(key)} bytes; at least {SHORTEST_KEY} are needed: openssl rand -hex 32",
            USAGE,
        )
    return key


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the files below ``directory`` by their names on the board. Raises CommandError."""
    if not directory.is_dir():
        raise CommandError(f"{directory} is not a directory", USAGE)
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if path.is_file() and not _SKIPPED.intersection(name.parts):
            found[name.as_posix()] = path.read_bytes()
    if not found:
        raise CommandError(f"{directory} has no files", USAGE)
    return found


def make_image(
    files: Mapping[str, bytes],
    key: bytes,
    target: str,
    version: str,
    serial: int,
    *,
    downgrade: bool = False,
    firmware: bytes | None = None,
) -> bytes:
    """Return the image of a version for the board ``target``, signed with its ``key``.

    ``serial`` is larger for each further image; the command uses the time in seconds. ``downgrade`` allows the board to
    return to an earlier version. Raises CommandError for names, versions and sizes that boards refuse.
    """
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,3}", version):
        raise CommandError(f"version {version!r}: numbers separated by dots, such as 1.10.2", USAGE)
    for name in files:
        _check_name(name, files)
    manifest: dict[str, object] = {
        "format": 1,
        "target": target,
        "version": version,
        "serial": serial,
        "files": [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()],
    }
    if downgrade:
        manifest["downgrade"] = True
    if firmware is not None:
        if firmware[:1] != _FIRMWARE_MAGIC:
            raise CommandError("the firmware is no ESP32 application image: use the file .app-bin", USAGE)
        manifest["firmware"] = [len(firmware), hashlib.sha256(firmware).hexdigest()]
    text = json.dumps(manifest, separators=(",", ":")).encode()
    if len(text) > LARGEST_MANIFEST:
        raise CommandError(
            f"the manifest of {len(files)} files has {len(text)} bytes; boards accept {LARGEST_MANIFEST}: "
            "bundle modules (`./run build`) or give the files shorter names",
            USAGE,
        )
    head = MAGIC + len(text).to_bytes(2, "big")
    image = (
        head + hmac.digest(key, head + text, "sha256") + text + b"".join(files.values()) + (firmware or b"")
    )
    if len(image) > LARGEST_IMAGE:
        raise CommandError(f"the image has {len(image):,} bytes; boards accept {LARGEST_IMAGE:,}", USAGE)
    return image


def _check_name(name: str, files: Mapping[str, bytes]) -> None:
    path = PurePosixPath(name)
    if (
        not 0 < len(name.encode()) <= LONGEST_NAME
        or path.is_absolute()
        or {"", ".", ".."}.intersection(name.split("/"))
        or not name.isprintable()
        or "\\" in name
    ):
        raise CommandError(
            f"file name {name!r}: relative, without . and .., at most {LONGEST_NAME} bytes", USAGE
        )
    if name in _RESERVED:
        raise CommandError(f"file name {name!r} is reserved for the board's update receiver", USAGE)
    if any(str(parent) in files for parent in path.parents):
        raise CommandError(f"file name {name!r}: a file has the name of its folder", USAGE)
