"""A `headwater hub` for tests of Spark's formats, and what its topics carry."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from headwater_host.client.blocking import FmqClient
from headwater_host.client.fmq import Message
from tests.host.command import Running, running
from tests.waiting import PATIENCE_S

END = b"end of the test"


class HubProcess:
    """A hub that can be stopped and started on the same port."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        self.directory = directory
        self.port = 0
        self._config = directory / "hub.toml"
        self._config.write_text(settings)
        self._running = contextlib.ExitStack()
        self.process: Running | None = None

    def start(self) -> None:
        """Start it, on the last port."""
        options = ["--config", self._config, "--storage", self.directory / "hub.db", "--port", self.port]
        self.process = self._running.enter_context(running("hub", *options, directory=self.directory))
        self.process.wait_for("storage in")
        found = re.search(r"port (\d+)", self.process.errors)
        assert found is not None
        self.port = int(found[1])

    def stop(self) -> None:
        """Stop it in good order."""
        assert self.process is not None
        assert self.process.end() == 0
        self._running.close()

    def kill(self) -> None:
        """Kill it."""
        self._running.close()


@contextlib.contextmanager
def hub_on(directory: Path, settings: str = "") -> Iterator[HubProcess]:
    """A hub that runs."""
    directory.mkdir(exist_ok=True)
    hub = HubProcess(directory, settings)
    hub.start()
    try:
        yield hub
    finally:
        hub.kill()


class Reader:
    """A consumer group of some topics that reads what was published so far."""

    def __init__(self, port: int, *topics: str) -> None:
        self._client = FmqClient("127.0.0.1", port, identifier="reader", timeout=PATIENCE_S, reconnect=True)
        self._topics = topics

    def __enter__(self) -> "Reader":
        self._client.__enter__()
        for topic in self._topics:
            self._client.consume(self._client.subscribe(topic, group="reader"), need_ack=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._client.__exit__(None, None, None)

    def take(self) -> list[Message]:
        """All messages up to now, of topics with one queue."""
        for topic in self._topics:
            self._client.publish(topic, END, 1)
        found: list[Message] = []
        ends = 0
        for message in self._client.messages(timeout=PATIENCE_S):
            self._client.ack(message)
            if message.payload != END:
                found.append(message)
            elif (ends := ends + 1) == len(self._topics):
                break
        return found


def publish(port: int, *messages: tuple[str, bytes]) -> None:
    """Publish at QoS 1."""
    with FmqClient("127.0.0.1", port, identifier="board", timeout=PATIENCE_S) as client:
        for topic, payload in messages:
            client.publish(topic, payload, 1)
