"""Stands between a client and a server, and keeps what the client sends."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from tests.host.command import headwater
from tools.broker import HOST


class Recorder:
    """Takes connections on ``port`` one after the other, and passes everything on."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._sent = bytearray()
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with client, socket.create_connection((HOST, self._target)) as server:
                    back = threading.Thread(target=self._pass, args=(server, client), daemon=True)
                    back.start()
                    self._pass(client, server, self._sent)
                    back.join()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, kept: bytearray | None = None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def packets(self, version: str = "5") -> list[dict[str, Any]]:
        """What was sent, as ``headwater inspect`` reads it; the connection must be over. Begins anew."""
        shown = headwater(
            *("inspect", "--protocol", "mqtt", "--version", version, "--json", "--hex", "-"),
            data=bytes(self._sent).hex().encode(),
        )
        assert shown.returncode == 0, shown
        self._sent.clear()
        return [json.loads(line) for line in shown.stdout.splitlines()]

    def close(self) -> None:
        """No more connections."""
        self._server.close()


@contextlib.contextmanager
def recording(target: int) -> Iterator[Recorder]:
    """A recorder in front of the server at this port."""
    recorder = Recorder(target)
    try:
        yield recorder
    finally:
        recorder.close()
