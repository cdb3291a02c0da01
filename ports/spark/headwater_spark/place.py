"""The place of a set of tables: a directory, or a prefix of an object store with storage options.

A place is small, so every task can have it. Files in it are written and read by `pyarrow.fs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from headwater_host.capture import filesystem
from headwater_host.capture.filesystem import (
    Location,
    LocationError,
    Storage,
    is_remote,
    local_path,
    parse_storage,
)
from headwater_host.private import sync_directory

if TYPE_CHECKING:
    from pyarrow import fs


class Place(NamedTuple):
    """A directory or file: its absolute path or URI, and storage options."""

    location: str
    storage: Storage = ()

    @classmethod
    def at(
        cls, location: Location | Place, storage: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    ) -> Place:
        """Return the place at a location. Raises LocationError for a URI that cannot have tables."""
        if isinstance(location, Place):
            return location
        if not is_remote(location):
            return cls(str(local_path(location).absolute()))
        text = os.fspath(location).rstrip("/")
        parts = urlsplit(text)
        if not parts.scheme.lower().startswith("s3"):
            raise LocationError(f"{text}: tables need a directory or S3")
        if not parts.netloc:
            raise LocationError(f"{text}: the bucket is missing, as in s3://bucket/prefix")
        return cls(f"s3://{parts.netloc}{parts.path}", parse_storage(storage))

    def __truediv__(self, name: str) -> Place:
        """Return the place of a file or folder in this one."""
        return Place(f"{self.location.rstrip('/')}/{name}", self.storage)

    def __str__(self) -> str:
        return self.location

    @property
    def path(self) -> Path | None:
        """The path on this machine; None in an object store."""
        return None if is_remote(self.location) else Path(self.location)

    @property
    def options(self) -> dict[str, str]:
        """The storage options for `deltalake`."""
        if self.path is not None:
            return {}
        found = filesystem.object_store_options(self.storage, urlsplit(self.location).netloc)
        # Also if the environment asks for renames without a condition: one of two equal commits must fail.
        return found | {"AWS_CONDITIONAL_PUT": "etag", "AWS_S3_ALLOW_UNSAFE_RENAME": "false"}

    def arrow(self) -> tuple[fs.FileSystem, str]:
        """Return pyarrow's file system, and the path in it."""
        if self.path is not None:
            return _local(), self.location
        return filesystem.arrow_filesystem(self.location, self.storage)

    def open(self) -> Any:
        """Open a file for reads at any offset. Raises OSError."""
        found, path = self.arrow()
        return found.open_input_file(path)

    def names(self) -> list[str]:
        """Return the names of the files in a folder, sorted; a folder that does not exist has none."""
        try:
            return filesystem.folder(*self).names()
        except FileNotFoundError:
            return []

    def read(self) -> bytes:
        """Return the content of a file. Raises FileNotFoundError and OSError."""
        if self.path is not None:
            return self.path.read_bytes()
        with self.open() as file:
            data: bytes = file.read()
        return data

    def write(self, data: bytes) -> None:
        """Create or replace a file. Raises OSError."""
        if self.path is not None:
            self.path.write_bytes(data)
            return
        found, path = self.arrow()
        with found.open_output_stream(path) as file:
            file.write(data)

    def partial(self) -> Place:
        """Return the place where a file is written until `finish`; an object appears when it is complete."""
        if self.path is None:
            return self
        return Place(str(self.path.with_name(f".{self.path.name}.{os.getpid()}")))

    def open_output(self) -> Any:
        """Open a new file for writing, and create its folder, but not the folder's. Raises OSError."""
        if self.path is not None and not self.path.parent.is_dir():
            self.path.parent.mkdir(exist_ok=True)
            sync_directory(self.path.parent.parent)
        found, path = self.arrow()
        return found.open_output_stream(path)

    def finish(self, place: Place) -> None:
        """Give a closed partial file its name, durably. Raises OSError."""
        if self.path is None or place.path is None:
            return
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.path.replace(place.path)
        sync_directory(place.path.parent)

    def create(self, data: bytes) -> bool:
        """Create a file durably, unless it exists. Return whether this call has created it. Raises OSError."""
        return filesystem.create(self.location, data, self.storage)

    def remove(self) -> None:
        """Remove a file, if it exists. Raises OSError."""
        filesystem.remove(*self)


@lru_cache(maxsize=1)
def _local() -> fs.FileSystem:
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()
