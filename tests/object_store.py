"""A server with S3's interface, in this process: moto."""

import contextlib
import itertools
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headwater_host.capture.filesystem import folder

_numbers = itertools.count()


class Bucket(NamedTuple):
    """An empty bucket: its URI, and the storage options for it, which are environment variables as well."""

    uri: str
    options: dict[str, str]

    @property
    def storage(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.options.items()))

    def upload(self, directory: Path, prefix: str = "") -> str:
        """Copy the files of a folder to a prefix, by default to another one each time; its URI."""
        target = folder(f"{self.uri}/{prefix or f'log-{next(_numbers)}'}", self.storage)
        for path in directory.iterdir():
            if path.is_file():
                target.write(path.name, [path.read_bytes()])
        return target.location


class ObjectStore:
    """A running server."""

    def __init__(self, endpoint: str) -> None:
        self._count = 0
        self.options = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def bucket(self) -> Bucket:
        self._count += 1
        name = f"bucket-{self._count}"
        request = urllib.request.Request(f"{self.options['AWS_ENDPOINT_URL']}/{name}", method="PUT")
        urllib.request.urlopen(request).close()
        return Bucket(f"s3://{name}", self.options)


@contextlib.contextmanager
def running() -> Iterator[ObjectStore]:
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it prints every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield ObjectStore(f"http://127.0.0.1:{server.get_host_and_port()[1]}")
    finally:
        server.stop()
