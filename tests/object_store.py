"""A server with S3's interface: moto, in a process of its own, because `deltalake` waits for answers with the GIL held.

``python -m tests.object_store``: print the port and serve until the end of stdin.
"""

import contextlib
import functools
import itertools
import logging
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
    command = [sys.executable, "-m", "tests.object_store"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield ObjectStore(f"http://127.0.0.1:{int(server.stdout.readline())}")
        finally:
            server.stdin.close()


def _serialize_conditional_writes(dispatcher: Any) -> None:
    """moto looks for the object and then stores it: of two threads that look at once, both would write."""
    serve = dispatcher.__call__
    conditional = threading.Lock()

    def serve_conditional(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        with conditional if "HTTP_IF_NONE_MATCH" in environ else contextlib.nullcontext():
            return serve(self, environ, start_response)

    dispatcher.__call__ = serve_conditional


def main() -> None:
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Dispatcher

    # For each request it lists the folders of all services that moto has, twice.
    Dispatcher.get_backend_for_host = functools.cache(Dispatcher.get_backend_for_host)  # type: ignore[method-assign]
    _serialize_conditional_writes(Dispatcher)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it prints every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
