"""The folder of a capture log, on this machine or in an object store.

A location is a path or a URI. Paths and ``file:`` URIs need the standard library only; other URIs
(``s3://bucket/prefix``) need pyarrow, which is imported when the first of them is used.

*Storage options* are pairs of names and values. The names are those of AWS's environment variables (``STORAGE``); a
missing option comes from the environment.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from headwater_host.private import make_directory, opened, sync_directory

#: A path, or the text of a path or URI.
Location = str | os.PathLike[str]
#: Storage options as sorted pairs: hashable, and small enough for every task.
Storage = tuple[tuple[str, str], ...]

#: Names of storage options, and what each is.
STORAGE = {
    "AWS_ACCESS_KEY_ID": "access key",
    "AWS_SECRET_ACCESS_KEY": "secret key",
    "AWS_SESSION_TOKEN": "session token of temporary credentials",
    "AWS_REGION": "region; default: the bucket's",
    "AWS_ENDPOINT_URL": "URL of another server with S3's interface, such as http://127.0.0.1:9000",
    "AWS_ALLOW_HTTP": "true: an endpoint URL may be http",
}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_S3 = {"s3", "s3a", "s3n"}
_SECTOR = 512
#: Requests to an object store at a time.
THREADS = 16


class LocationError(ValueError):
    """A location or a storage option is invalid, or pyarrow is missing."""


def parse_storage(given: Mapping[str, str] | Iterable[tuple[str, str]]) -> Storage:
    """Return storage options; names may have any case. Raises LocationError for an unknown name."""
    found = {}
    for name, value in dict(given).items():
        if name.upper() not in STORAGE:
            raise LocationError(f"there is no storage option {name!r}; there are {', '.join(STORAGE)}")
        found[name.upper()] = value
    return tuple(sorted(found.items()))


def is_remote(location: Location) -> bool:
    """Return whether a location is a URI of another file system than this machine's."""
    found = _SCHEME.match(location) if isinstance(location, str) else None
    return found is not None and found[1].lower() != "file"


def local_path(location: Location) -> Path:
    """Return the path of a location on this machine. Raises LocationError for others."""
    text = os.fspath(location)
    if is_remote(text):
        raise LocationError(f"{text}: this needs a directory of this machine")
    if isinstance(location, str) and text.startswith("file:"):
        text = re.sub("^//(?=/)", "", text.removeprefix("file:"))
    return Path(text)


def base_name(location: Location) -> str:
    """Return the name of a file without its folder."""
    return os.fspath(location).rpartition("/")[2]


class File(Protocol):
    """An open file. ``windows``: the bytes to read at once, first and at most, for bodies and for headers only."""

    size: int
    windows: tuple[tuple[int, int], tuple[int, int]]

    def pread(self, length: int, at: int) -> bytes:
        """Return up to ``length`` bytes from offset ``at``; fewer at the end of the file. Raises OSError."""

    def close(self) -> None:
        """Close the file."""


class Folder(Protocol):
    """The folder of a log, by its path or URI."""

    location: str
    storage: Storage
    #: How many files are worth reading at a time.
    threads: int

    def names(self) -> list[str]:
        """Return the names of the files, sorted. Raises FileNotFoundError, except in object stores."""

    def locate(self, name: str) -> str:
        """Return the location of a file."""

    def size(self, name: str) -> int:
        """Return the size of a file. Raises FileNotFoundError."""

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Create or replace a file, durably. Raises OSError.

        Readers see all of it or nothing; but if reading ``pieces`` fails, an object store may have the first ones.
        """


def folder(location: Location, storage: Storage = ()) -> Folder:
    """Return the folder of a location. Raises LocationError; existence is not checked."""
    return (
        _RemoteFolder(os.fspath(location), storage)
        if is_remote(location)
        else _LocalFolder(local_path(location))
    )


def open_file(location: Location, storage: Storage = ()) -> File:
    """Open a file for reading. Raises LocationError and OSError."""
    if is_remote(location):
        return _RemoteFile(os.fspath(location), storage)
    return LocalFile(os.open(local_path(location), os.O_RDONLY))


def exists(location: Location, storage: Storage = ()) -> bool:
    """Return whether there is a file. Raises LocationError and OSError."""
    if not is_remote(location):
        return local_path(location).exists()
    parent, _, name = os.fspath(location).rpartition("/")
    try:
        return folder(parent, storage).size(name) >= 0
    except FileNotFoundError:
        return False


def create(location: Location, data: bytes, storage: Storage = ()) -> bool:
    """Create a small file durably, and its directory, unless it exists. Return whether this call has created it.

    Of several callers, one creates it; readers see all of it or nothing. Raises LocationError and OSError.
    """
    if not is_remote(location):
        return _create_file(local_path(location), data)
    try:
        with _object(location, storage) as (store, path):
            store.put(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def remove(location: Location, storage: Storage = ()) -> None:
    """Remove a file, if it exists. Raises LocationError and OSError."""
    if not is_remote(location):
        local_path(location).unlink(missing_ok=True)
        return
    # pyarrow would leave an object in place of the folder.
    with _object(location, storage) as (store, path):
        store.delete(path)


# ---- this machine ----------------------------------------------------------------------------------------------------


class LocalFile:
    """A file of this machine, by its descriptor. Unreadable sectors become zeros, which no CRC matches."""

    windows = (256 << 10, 256 << 10), (4096, 4096)

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Bytes that are appended later belong to the next walk.
        self.size = os.fstat(fd).st_size

    def pread(self, length: int, at: int) -> bytes:
        """Return up to ``length`` bytes from offset ``at``; fewer at the end of the file."""
        parts = []
        while length > 0:
            try:
                part = os.pread(self._fd, length, at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                # Read what is readable around a bad sector.
                part = bytes(length) if length <= _SECTOR else self.pread(length // 2, at)
            if not part:
                break
            parts.append(part)
            at += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


class _LocalFolder:
    storage: Storage = ()
    threads = 1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    def locate(self, name: str) -> str:
        # Absolute, because Spark's tasks have other working directories.
        return str(self.path.absolute() / name)

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        make_directory(self.path)
        part = self.path / f"{name}.part"
        with open(part, "wb", opener=opened) as out:
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        part.replace(self.path / name)
        sync_directory(self.path)


def _create_file(path: Path, data: bytes) -> bool:
    make_directory(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link does not replace a file.
            path.hardlink_to(part)
        except FileExistsError:
            return False
    finally:
        part.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


# ---- object stores ---------------------------------------------------------------------------------------------------


def arrow_filesystem(location: str, storage: Storage = ()) -> tuple[Any, str]:
    """Return pyarrow's file system of a URI, and the path in it. Raises LocationError."""
    parts = urlsplit(location)
    if parts.query or parts.fragment:
        raise LocationError(f"{location}: give storage options by name instead of in the URI")
    if parts.scheme.lower() not in _S3:
        fs = _arrow_fs()
        try:
            found: tuple[Any, str] = fs.FileSystem.from_uri(location)
        except (ValueError, NotImplementedError, OSError) as error:
            # An unknown scheme, an invalid URI, or a file system whose library is missing: several lines of text.
            why = str(error).partition("\n")[0]
            raise LocationError(
                f"{location}: this URI cannot be read; use a directory or s3://bucket/prefix ({why})"
            ) from error
        return found
    if not parts.netloc:
        raise LocationError(f"{location}: the bucket is missing, as in s3://bucket/prefix")
    return _s3(parts.netloc, storage), f"{parts.netloc}/{parts.path.strip('/')}".rstrip("/")


def _arrow_fs() -> Any:
    try:
        from pyarrow import fs
    except ModuleNotFoundError:
        raise LocationError("object stores need pyarrow: pip install 'headwater[s3]'") from None
    return fs


@lru_cache(maxsize=64)
def _s3(bucket: str, storage: Storage) -> Any:
    fs = _arrow_fs()
    options = _options(storage)
    given = {
        "access_key": options.get("AWS_ACCESS_KEY_ID"),
        "secret_key": options.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": options.get("AWS_SESSION_TOKEN"),
        "region": options.get("AWS_REGION"),
    }
    endpoint = options.get("AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint)
        given |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    elif not given["region"]:
        given["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(**{name: value for name, value in given.items() if value})


@contextmanager
def _object(location: Location, storage: Storage) -> Iterator[tuple[Any, str]]:
    """Provide obstore's store of a bucket, and the path in it. Its errors become OSErrors."""
    text = os.fspath(location)
    parts = urlsplit(text)
    if parts.scheme.lower() not in _S3:
        raise LocationError(f"{text}: tables need a directory or S3")
    try:
        from obstore.exceptions import AlreadyExistsError, BaseError
    except ModuleNotFoundError:
        raise LocationError("tables on S3 need obstore: pip install 'headwater[spark]'") from None
    try:
        yield _store(parts.netloc, storage), parts.path.lstrip("/")
    except AlreadyExistsError as error:
        raise FileExistsError(text) from error
    except (BaseError, FileNotFoundError) as error:
        raise store_error(text, error) from error


@lru_cache(maxsize=64)
def _store(bucket: str, storage: Storage) -> Any:
    """Return obstore's store of a bucket: it has conditional PUTs, which pyarrow does not offer."""
    from obstore.store import S3Store

    config: Any = {name.lower(): value for name, value in object_store_options(storage, bucket).items()}
    return S3Store(bucket, config=config)


def object_store_options(storage: Storage, bucket: str) -> dict[str, str]:
    """Return the options of obstore and `deltalake` for a bucket."""
    options = _options(storage)
    endpoint = options.get("AWS_ENDPOINT_URL", "")
    options.setdefault("AWS_ALLOW_HTTP", str(endpoint.startswith("http:")).lower())
    if "AWS_REGION" not in options:
        options["AWS_REGION"] = "us-east-1" if endpoint else _arrow_fs().resolve_s3_region(bucket)
    return options


def store_error(location: str, error: Exception) -> OSError:
    """Return an error of obstore or `deltalake`, whose texts have many lines, as an error of one line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    said = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
    if said is None:
        lines = [line.strip(" \t↳") for line in text.partition("Debug source:")[0].splitlines()]
        said = re.match(r"(.*)", ": ".join(line for line in lines if line), re.DOTALL)
    assert said is not None
    return OSError(f"{location}: {said[1]}")


def _options(storage: Storage) -> dict[str, str]:
    """Return the storage options with those of the environment. Raises LocationError for an invalid endpoint."""
    found = {name: os.environ[name] for name in STORAGE if os.environ.get(name)} | dict(storage)
    if "AWS_DEFAULT_REGION" in os.environ:
        found.setdefault("AWS_REGION", os.environ["AWS_DEFAULT_REGION"])
    endpoint = found.get("AWS_ENDPOINT_URL", "http://-")
    if not re.fullmatch(r"https?://[^/\s?#@]+/?", endpoint):
        raise LocationError(f"AWS_ENDPOINT_URL={endpoint}: expected http://HOST:PORT or https://HOST:PORT")
    return found


class _RemoteFile:
    """An object. Each read is a request, so windows grow while they follow each other."""

    windows = (256 << 10, 8 << 20), (4096, 1 << 20)

    def __init__(self, location: str, storage: Storage) -> None:
        filesystem, path = arrow_filesystem(location, storage)
        self._file = filesystem.open_input_file(path)
        self.size: int = self._file.size()

    def pread(self, length: int, at: int) -> bytes:
        """Return up to ``length`` bytes from offset ``at``; fewer at the end of the object."""
        if at >= self.size:
            return b""
        data: bytes = self._file.read_at(min(length, self.size - at), at)
        return data

    def close(self) -> None:
        self._file.close()


class _RemoteFolder:
    threads = THREADS

    def __init__(self, location: str, storage: Storage) -> None:
        self.location = location.rstrip("/")
        self.storage = storage
        self._fs, self._path = arrow_filesystem(self.location, storage)
        self._sizes: dict[str, int] = {}

    def names(self) -> list[str]:
        fs = _arrow_fs()
        try:
            found = self._fs.get_file_info(fs.FileSelector(self._path))
        except FileNotFoundError:
            found = []  # there are no folders, only names with a common beginning
        self._sizes = {info.base_name: info.size for info in found if info.type == fs.FileType.File}
        return sorted(self._sizes)

    def locate(self, name: str) -> str:
        return f"{self.location}/{name}"

    def size(self, name: str) -> int:
        if name not in self._sizes:
            (info,) = self._fs.get_file_info([f"{self._path}/{name}"])
            if info.size is None:
                raise FileNotFoundError(errno.ENOENT, "no such object", self.locate(name))
            self._sizes[name] = info.size
        return self._sizes[name]

    def read(self, name: str) -> bytes:
        with self._fs.open_input_file(f"{self._path}/{name}") as file:
            data: bytes = file.read()
        return data

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        self._sizes.pop(name, None)
        # An object appears when its stream is closed.
        with self._fs.open_output_stream(f"{self._path}/{name}") as out:
            for piece in pieces:
                out.write(piece)
