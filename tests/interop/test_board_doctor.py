"""``headwater board doctor`` on virtual boards with a radio: each step fails once, and names its cause and remedy."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater_host.board import doctor, doctor_steps
from headwater_host.board.doctor import FAILED, OK, SKIPPED, Finding
from headwater_host.board.install import RECORD, Record, hash_of
from headwater_host.board.repl import Board
from tests.certificates import Pki
from tests.host.command import headwater, hub_at
from tools import deploy
from tools.board_air import PASSWORD, SSID
from tools.broker import Mosquitto, free_port
from tools.virtual_board import VirtualBoard

Start = Callable[..., Mosquitto]
pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]

#: The broker's address beyond the radio.
ADDRESS = "192.168.4.1"
STEPS = ["serial port", "firmware", "library", *(step.name for step in doctor_steps.STEPS)]


def settings(**more: Any) -> dict[str, Any]:
    broker = {"host": "broker.local", "client_id": "board-1", **more.pop("broker", {})}
    return {"wifi": [{"ssid": SSID, "password": PASSWORD}], "broker": broker, **more}


def files() -> dict[str, Any]:
    """All modules and the record of their installation."""
    found = deploy.package_files("mpy")
    hashes = {name: hash_of(path.read_bytes()) for name, path in found.items()}
    return {**found, RECORD: json.dumps(dataclasses.asdict(Record("0.1.0", ["headwater"], hashes)))}


@pytest.fixture(scope="module", params=["esp32", "rp2"])
def board(request: pytest.FixtureRequest) -> Iterator[VirtualBoard]:
    with VirtualBoard(
        port=request.param, files=files(), main="print('started')", heap="384K", pace=0.02
    ) as made:
        made.air.name("broker.local", ADDRESS)
        yield made


@pytest.fixture
def broker(board: VirtualBoard, plain: Mosquitto) -> Mosquitto:
    board.air.reach(f"{ADDRESS}:1883", plain.port)
    return plain


def examine(board: VirtualBoard, found: dict[str, Any]) -> list[Finding]:
    """Examine a board that has just started, with these settings."""
    board.put({"headwater.json": json.dumps(found)})
    mark = board.mark
    board.reset()
    board.wait_for("started", after=mark)
    with Board(board.port) as remote:
        return list(doctor.examine(remote))


def fails(board: VirtualBoard, found: dict[str, Any], step: str) -> Finding:
    """Return the finding of the step that fails; all before it are well."""
    findings = examine(board, found)
    assert [one.step for one in findings] == STEPS[: STEPS.index(step) + 1], findings
    assert [one.result for one in findings[:-1]].count(FAILED) == 0
    last = findings[-1]
    assert last.result == FAILED
    return last


@pytest.fixture
def wired(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings with Ethernet instead of WiFi."""
    esp32 = request.node.callspec.params["board"] == "esp32"
    found = {**settings(), "ethernet": {"chip": "LAN8720", "mdc": 23, "mdio": 18} if esp32 else {}}
    del found["wifi"]
    return found


def test_ethernet_is_examined_without_wifi(
    board: VirtualBoard, broker: Mosquitto, wired: dict[str, Any]
) -> None:
    findings = {one.step: one for one in examine(board, wired)}
    assert [one for one in findings.values() if one.result == FAILED] == []
    assert findings["WiFi"].result == SKIPPED
    assert findings["address"].text.startswith("192.168.4.2, mask 255.255.255.0")
    assert findings["acknowledgement"].result == OK


def test_a_board_that_is_well_passes_every_step(board: VirtualBoard, broker: Mosquitto) -> None:
    board.put({"headwater.json": json.dumps(settings())})
    board.reset()
    done = headwater("board", "doctor", "--port", board.port)
    shown = done.stdout.decode()
    assert done.returncode == 0, shown + done.stderr.decode()
    assert [line[6:23].strip() for line in shown.splitlines()] == STEPS
    assert f"ok    WiFi             joined {SSID} after " in shown
    assert (
        "ok    address          192.168.4.2, mask 255.255.255.0, gateway 192.168.4.1, DNS 192.168.4.1; "
        in shown
    )
    assert "-     TLS              not in the settings\n" in shown
    assert "ok    CONNECT          accepted as board-1-doctor\n" in shown
    assert "ok    publish          QoS 1 to board-1/doctor\n" in shown
    assert "Received PUBLISH from board-1-doctor (d0, q1, r0, m1, 'board-1/doctor'" in broker.log_text()


def test_a_missing_or_changed_library_fails(board: VirtualBoard) -> None:
    changed = board.fs_path("/lib/headwater/wire.mpy")
    before = changed.read_bytes()
    changed.write_bytes(b"torn")
    try:
        found = fails(board, settings(), "library")
        assert found.text == "files changed since the installation: /lib/headwater/wire.mpy"
        assert found.remedy == "repeat `headwater board install`"
    finally:
        changed.write_bytes(before)


def test_wrong_settings_fail_with_each_mistake(board: VirtualBoard) -> None:
    found = fails(board, settings(country="Switzerland", broker={"port": 0}), "settings")
    assert "country is" in found.text
    assert "broker.port is 0" in found.text
    assert "headwater board install --settings FILE" in found.remedy


def test_a_missing_key_for_updates_fails(board: VirtualBoard, broker: Mosquitto) -> None:
    found = settings(update={"topic": "boards/board-1/update", "key_file": "/update.key"})
    missing = fails(board, found, "settings")
    assert 'update.key_file is "/update.key", which cannot be read' in missing.text
    assert missing.remedy.startswith("copy the key that signs this board's updates")
    board.put({"update.key": "00" * 32})
    assert [one.result for one in examine(board, found)].count(FAILED) == 0


def test_each_fault_of_wifi_is_named(board: VirtualBoard) -> None:
    found = fails(board, settings(wifi=[{"ssid": SSID, "password": "wrong word"}]), "WiFi")
    assert (found.text, found.remedy) == (
        f"{SSID}: wrong password; in range: {SSID}",
        "enter the password again: `headwater board install --wifi SSID`",
    )
    found = fails(board, settings(wifi=[{"ssid": "elsewhere", "password": PASSWORD}]), "WiFi")
    assert found.text == f"elsewhere: no access point found; in range: {SSID}"
    assert "boards need 2.4 GHz" in found.remedy


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the steps wait for a fifth of their time: the radio's times are a fiftieth."""
    first, *others = doctor_steps.STEPS
    shorter = first._replace(code=first.code.replace("seconds * 1000", "seconds * 200"))
    assert shorter != first
    monkeypatch.setattr(doctor, "STEPS", (shorter, *others))


@pytest.mark.usefixtures("hurried")
def test_no_answer_of_dhcp_is_a_fault_of_the_address(board: VirtualBoard) -> None:
    board.air.change(SSID, dhcp_ms=None)
    try:
        found = fails(board, settings(), "address")
        assert "DHCP gives no address" in found.text
    finally:
        board.air.change(SSID, dhcp_ms=300)


@pytest.mark.usefixtures("hurried")
def test_a_cable_that_is_off_fails_and_passes_once_it_is_on(
    board: VirtualBoard, broker: Mosquitto, wired: dict[str, Any]
) -> None:
    board.air.set(cable=False)
    try:
        found = fails(board, wired, "address")
    finally:
        board.air.set(cable=True)
    assert found.text.startswith("Ethernet: no link, or DHCP gives no address")
    assert found.remedy.startswith("check the cable, the chip's pins in the settings")
    assert [one.result for one in examine(board, wired)].count(FAILED) == 0


def test_an_unknown_name_fails(board: VirtualBoard) -> None:
    found = fails(board, settings(broker={"host": "nobody.local"}), "name")
    assert "or use the address: `headwater board install --broker mqtt://ADDRESS`" in found.remedy


def test_a_port_without_a_listener_and_one_without_an_answer_fail(board: VirtualBoard) -> None:
    board.air.reach(f"{ADDRESS}:1883", free_port())
    found = fails(board, settings(), "TCP")
    assert "ECONNREFUSED" in found.text
    assert "nothing listens at that port" in found.remedy


def secured(**tls: str) -> dict[str, Any]:
    return settings(broker={"tls": {"ca": "/ca.der", "server_name": "localhost", **tls}})


@pytest.fixture
def has_time(board: VirtualBoard) -> Iterator[None]:
    """The board has the time when it starts."""
    code = f"from headwater_board.clock import set_clock\nset_clock({time.time_ns() // 1_000_000})\n"
    board.put({"boot.py": code})
    yield
    board.fs_path("/boot.py").unlink()


@pytest.mark.usefixtures("hurried")
def test_tls_without_the_time_fails(board: VirtualBoard, broker: Mosquitto, pki: Pki) -> None:
    board.air.reach(f"{ADDRESS}:8883", broker.port)
    board.put({"ca.der": pki.ca.cert_der})
    found = fails(board, secured(), "time")
    assert found.text == "the clock is not set, and pool.ntp.org does not answer"
    assert "allow UDP port 123" in found.remedy


@pytest.mark.usefixtures("has_time")
def test_a_certificate_that_is_not_valid_fails(board: VirtualBoard, mosquitto: Start, pki: Pki) -> None:
    board.put({"ca.der": pki.ca.cert_der, "stranger.der": pki.stranger.cert_der})
    wrong = {
        "the certificate is not from the board's CA": (pki.server, secured(ca="/stranger.der")),
        "the certificate names another host": (pki.elsewhere, secured()),
        "compare the certificate's dates": (pki.expired, secured()),
    }
    for remedy, (certificate, found) in wrong.items():
        broker = mosquitto(settings=pki.listener(certificate))
        board.air.reach(f"{ADDRESS}:8883", broker.port)
        assert fails(board, found, "TLS").remedy.startswith(remedy)


@pytest.mark.usefixtures("has_time")
def test_tls_passes_or_finds_that_the_server_has_none(
    board: VirtualBoard, mosquitto: Start, broker: Mosquitto, pki: Pki
) -> None:
    board.put({"ca.der": pki.ca.cert_der})
    board.air.reach(f"{ADDRESS}:8883", mosquitto(settings=pki.listener(pki.server)).port)
    findings = {one.step: one for one in examine(board, secured())}
    assert findings["TLS"] == Finding("TLS", OK, "the certificate is valid for localhost")
    assert findings["acknowledgement"].result == OK
    board.air.reach(f"{ADDRESS}:8883", broker.port)
    assert "the server speaks TLS at this port" in fails(board, secured(), "TLS").remedy


def test_wrong_credentials_fail_at_connect(board: VirtualBoard, mosquitto: Start) -> None:
    strict = mosquitto(settings={"allow_anonymous": "false"})
    board.air.reach(f"{ADDRESS}:1883", strict.port)
    found = fails(board, settings(), "CONNECT")
    assert found.text == "E_REFUSED, return code 5"
    assert found.remedy == "correct user and password: `headwater board install --broker mqtt://USER@HOST`"


def test_a_message_that_the_broker_does_not_allow_fails_with_mqtt_5(
    board: VirtualBoard, mosquitto: Start, tmp_path: Path
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite open/#\n")
    acl.chmod(0o644)
    broker = mosquitto(settings={"acl_file": acl})
    board.air.reach(f"{ADDRESS}:1883", broker.port)
    found = fails(board, settings(broker={"version": "5.0"}), "acknowledgement")
    assert found.text == "the broker refused the message, reason code 135"
    assert "allow this user to publish" in found.remedy


def test_a_board_that_is_connected_already_skips_wifi(plain: Mosquitto) -> None:
    found = settings(broker={"host": "127.0.0.1", "port": plain.port})
    del found["wifi"]
    with VirtualBoard(files=files(), main="print('started')", heap="384K") as other:
        findings = examine(other, found)
    assert {one.step: one.result for one in findings} == {
        step: SKIPPED if step in ("WiFi", "address", "time", "TLS") else OK for step in STEPS
    }


def test_a_board_of_a_hub_passes(tmp_path: Path) -> None:
    with hub_at(tmp_path) as port, VirtualBoard(files=files(), main="print('started')", heap="384K") as board:
        found = settings(broker={"protocol": "fmq", "host": "127.0.0.1", "port": port})
        del found["wifi"]
        findings = examine(board, found)
    assert [one.step for one in findings] == STEPS, findings
    assert findings[-1].result == OK
