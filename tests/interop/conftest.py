"""What the tests against other implementations share: certificates, and a broker on WebSocket."""

import pytest

from tests.certificates import Pki
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
