"""What the tests against other implementations share: certificates, and a broker on WebSocket."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from headwater_host.hub.service import Hub
from tests.certificates import Pki
from tests.host.hub_client import config, hub_of
from tests.interop.secure import StartBroker, Web, serve_websocket
from tools.broker import Mosquitto


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def plain(mosquitto: StartBroker) -> Mosquitto:
    return mosquitto()


@pytest.fixture(scope="session")
def web(mosquitto: StartBroker) -> Web:
    return serve_websocket(mosquitto)


@pytest.fixture
def hub(tmp_path: Path) -> AbstractAsyncContextManager[Hub]:
    """A hub on the test's event loop."""
    return hub_of(config(tmp_path))
