"""The state machines of WiFi and Ethernet, with a driver that answers what the test says: one test for each state and
fault. How they do over modelled drivers of ESP32 and RP2: ``tests/host/test_fault_matrix.py``."""

from scripted_nic import ESP32, RP2, Network, Nic

from headwater import errors
from headwater.wire import TICKS_MASK
from headwater_board.ethernet import Connected, Ethernet
from headwater_board.wifi import CONNECTING, OFF, PAUSE, STARTING, UP, Wifi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater_board.interface import Interface

HOME = ("home", "password")
PHONE = ("phone", None)
JOIN_HOME = ("connect", "home", "password", None)
JOIN_PHONE = ("connect", "phone", None, None)
JOIN_LAB = ("connect", "lab", "password", None)
ADDRESS = ("10.0.0.9", "255.255.255.0", "10.0.0.1", "10.0.0.1")
ECONNREFUSED = 111
# What each port shows in turn: nothing yet, connecting, no access point, wrong password.
IDLE, TRYING, NO_AP, WRONG = 0, 1, 2, 3
CODES = {ESP32: (1000, 1001, 201, 202), RP2: (0, 1, -2, -3)}


class Radio:
    """A machine, its driver, and the time."""

    def __init__(self, port: int = ESP32, networks: "Any" = (HOME,), **options: "Any"):
        self.now = TICKS_MASK - 5000
        self.resets = 0
        self.codes = CODES[port]
        self.nic = Network.nic = Nic()
        self.nic.code = self.codes[IDLE]
        Network.STAT_GOT_IP = port
        Network.told = []
        self.wifi = Wifi(networks, reset=self.reset, **options)
        self.drive(self.wifi)

    def drive(self, interface: "Interface") -> None:
        self.interface = interface
        interface.ticks_ms = lambda: self.now

    def reset(self) -> None:
        self.resets += 1

    def poll(self, ms: int = 0, code: "int | None" = None) -> int:
        """Let the time pass in steps, and poll: the state. ``code``: what the driver shows from now on."""
        if code is not None:
            self.nic.code = self.codes[code]
        for _ in range(ms // 100):
            self.now = (self.now + 100) & TICKS_MASK
            assert self.interface.poll() == (self.interface.state == UP)
        self.interface.poll()
        state: int = self.interface.state
        return state

    def begin(self) -> "Radio":
        self.interface.start()
        assert self.poll() == CONNECTING
        return self

    def up(self) -> "Radio":
        return self.begin().link()

    def link(self) -> "Radio":
        self.nic.connected = True
        assert self.poll() == UP
        self.nic.said()
        return self

    def lose(self, code: int = NO_AP) -> int:
        self.nic.connected = False
        return self.poll(0, code)


def test_it_connects() -> None:
    for port, setting in ((ESP32, [("reconnects", 0)]), (RP2, [])):
        r = Radio(port, [("home", "password", b"123456")], country="DE", hostname="board", tx_power=8)
        assert r.poll(5000) == OFF and not r.nic.calls
        r.wifi.start()
        assert r.wifi.state == STARTING and Network.told == ["DE", "board"] and not r.nic.calls
        assert r.poll() == CONNECTING
        settings = [("active", True)] + setting + [("txpower", 8), ("pm", 0)]
        assert r.nic.said() == settings + [("connect", "home", "password", b"123456")]
        assert r.poll(3000, TRYING) == CONNECTING and r.wifi.reason == "connecting"
        assert r.link().wifi.connects == 1
        r.wifi.start()
        assert r.poll(100000) == UP and not r.nic.calls
        assert (r.wifi.lost, r.wifi.reconnects, r.wifi.restarts, r.wifi.resets) == (0, 0, 0, 0)


def test_settings_that_cannot_be() -> None:
    for make in (
        lambda: Radio(networks=()),
        lambda: Radio(networks=[HOME, ("home", "seven77")]),
        lambda: Radio(networks=[("home", "x" * 65)]),
        lambda: Radio(country="D").wifi.start(),
        lambda: Radio(offline_ms=1 << 29),
    ):
        try:
            make()
            raise AssertionError("no ValueError")
        except ValueError:
            pass


def test_a_static_address_is_set_before_each_attempt() -> None:
    r = Radio(address=ADDRESS).up()
    r.lose()
    r.poll(1000)
    assert r.nic.said() == [("disconnect",), ("ifconfig", ADDRESS), JOIN_HOME]


def test_an_interface_that_a_soft_reset_left_half_up_starts_anew() -> None:
    for port in (ESP32, RP2):
        r = Radio(port)
        r.nic.is_active = r.nic.connected = True
        r.wifi.start()
        assert r.nic.said() == [("disconnect",), ("active", False)]
        assert r.poll(900) == STARTING and not r.nic.calls
        assert r.poll(100) == CONNECTING and r.nic.said()[-1] == JOIN_HOME
        assert r.wifi.restarts == 0


def test_idle_between_connecting_and_the_address_is_no_failure() -> None:
    r = Radio()
    r.begin()
    r.poll(1000, TRYING)
    assert r.poll(3000, IDLE) == CONNECTING
    assert r.link().wifi.reconnects == 0


def test_without_an_address_yet_a_pico_waits() -> None:
    r = Radio(RP2)
    r.begin()
    r.nic.code = 2
    assert r.poll(29900) == CONNECTING and r.wifi.reason == "no address yet"
    assert r.poll(100) == PAUSE and r.nic.said()[-1] == ("disconnect",)


def test_a_pico_that_loses_its_access_point_before_it_has_an_address() -> None:
    """It shows "connecting" again, and does not connect."""
    r = Radio(RP2).begin()
    assert r.poll(1000, TRYING) == CONNECTING
    r.nic.code = 2
    assert r.poll(10000) == CONNECTING
    assert r.poll(0, TRYING) == PAUSE
    assert r.poll(1000) == CONNECTING and r.poll(29900) == CONNECTING


def test_a_failure_must_last() -> None:
    """An RP2 may report a wrong password, and then connect."""
    r = Radio(RP2)
    r.begin()
    r.poll(1000, TRYING)
    assert r.poll(900, WRONG) == CONNECTING and r.wifi.reason == "wrong password"
    assert r.poll(900, TRYING) == CONNECTING
    assert r.poll(1000, WRONG) == PAUSE


def test_after_a_failure_the_driver_has_a_pause() -> None:
    """An ESP32 whose access point restarted reports a wrong password until it has had one."""
    for port in (ESP32, RP2):
        r = Radio(port).up()
        assert r.lose(WRONG) == PAUSE and r.wifi.lost == 1 and r.nic.said() == [("disconnect",)]
        assert r.poll(900) == PAUSE and not r.nic.calls
        assert r.poll(100) == CONNECTING and r.nic.said() == [JOIN_HOME] and r.wifi.reconnects == 1
        assert r.link().wifi.connects == 2


def test_the_reason_of_an_earlier_failure_is_no_failure_of_this_attempt() -> None:
    """An ESP32 shows it until there is an address."""
    r = Radio()
    r.begin()
    assert r.poll(3000, TRYING) == CONNECTING
    assert r.poll(1000, NO_AP) == PAUSE
    assert r.poll(1000) == CONNECTING
    # Not within the time that finding an access point takes; and not while there is one, for instance during DHCP.
    assert r.poll(4900) == CONNECTING
    r.nic.associated = True
    assert r.poll(9000) == CONNECTING
    r.nic.associated = False
    assert r.poll() == PAUSE
    # Another reason is one of this attempt.
    assert r.poll(2000) == CONNECTING
    assert r.poll(1000, WRONG) == PAUSE
    # An RP2 forgets the last reason as it begins.
    r = Radio(RP2)
    r.nic.code = -2
    r.begin()
    assert r.poll(1000) == PAUSE


def test_networks_are_tried_in_order_and_first_the_one_that_worked() -> None:
    r = Radio(RP2, [HOME, PHONE])
    r.begin()
    r.poll()
    assert r.nic.said()[-1] == JOIN_HOME
    assert r.poll(1000, NO_AP) == PAUSE and r.poll(1000, TRYING) == CONNECTING
    assert r.nic.said() == [("disconnect",), JOIN_PHONE]
    r.link().lose(TRYING)
    r.poll(1000)
    assert r.nic.said() == [("disconnect",), JOIN_PHONE]
    r.poll(1000, NO_AP)
    r.poll(1000)
    assert r.nic.said() == [("disconnect",), JOIN_HOME]


def test_rounds_in_vain_restart_the_interface_less_and_less_often_and_never_reset() -> None:
    for port in (ESP32, RP2):
        r = Radio(port, attempts=2)
        r.begin()
        times: list[int] = []
        for second in range(7200):
            before = r.wifi.restarts
            r.nic.calls.clear()
            r.poll(1000, NO_AP)
            if r.wifi.restarts > before:
                times.append(second)
        gaps = [times[i + 1] - times[i] for i in range(len(times) - 1)]
        assert gaps[0] < 60 and gaps[-1] > 250 and max(gaps) < 900, gaps
        assert r.wifi.reconnects > 400 and r.resets == 0
        assert r.wifi.restarts == len(times) < 40
        # And there it is again.
        r.nic.connected = True
        r.poll(15000)
        assert r.wifi.state == UP


def test_a_dead_link_that_the_driver_takes_for_a_good_one() -> None:
    r = Radio(networks=[HOME, PHONE]).up()
    r.wifi.failed(errors.E_TIMEOUT, 0)
    r.wifi.failed(errors.E_UNREACHABLE, 110)
    assert r.poll() == UP and not r.nic.calls
    r.wifi.failed(errors.E_UNREACHABLE, 113)
    assert r.wifi.state == STARTING and r.wifi.restarts == 1
    assert r.nic.said() == [("disconnect",), ("active", False)]
    # Who knows whether the next network is better.
    r.nic.connected = False
    assert r.poll(1000) == CONNECTING and r.nic.said()[-1] == JOIN_PHONE
    r.link()
    # Restarts that do not help become rare, until a server answers.
    for limit in (6, 12, 24, 48, 48):
        for _ in range(limit - 1):
            r.wifi.failed(errors.E_TIMEOUT, 0)
        assert r.wifi.state == UP, limit
        r.wifi.failed(errors.E_TIMEOUT, 0)
        assert r.wifi.state == STARTING
        r.poll(1000)
        r.link()
    r.wifi.works()
    for _ in range(3):
        r.wifi.failed(errors.E_TIMEOUT, 0)
    assert r.wifi.state == STARTING and r.wifi.restarts == 7 and r.resets == 0


def test_somebody_who_answers_proves_the_link() -> None:
    r = Radio().up()
    for status, number in (
        (errors.E_UNREACHABLE, ECONNREFUSED),
        (errors.E_UNREACHABLE, 12),
        (errors.E_CLOSED, 0),
        (errors.E_REFUSED, 0),
        (errors.E_PROTOCOL, 0),
    ):
        for _ in range(10):
            r.wifi.failed(status, number)
        assert r.poll() == UP, status
    for _ in range(2):
        r.wifi.failed(errors.E_TIMEOUT, 0)
    r.wifi.failed(errors.E_REFUSED, 0)
    for _ in range(2):
        r.wifi.failed(errors.E_TIMEOUT, 0)
    assert r.poll() == UP and r.wifi.restarts == 0


def test_errors_of_the_driver_restart_the_interface_and_then_reset_the_board() -> None:
    for broken in ("active", "connect"):
        r = Radio()
        r.nic.breaks.add(broken)
        r.wifi.start()
        r.poll(60000)
        assert r.resets == 0
        r.poll(5000)
        assert r.resets == 1 == r.wifi.resets and r.wifi.restarts >= 9 + 1, broken
        assert r.wifi.error is not None
        # One that is mended in time does not.
        r = Radio()
        r.nic.breaks.add(broken)
        r.wifi.start()
        r.poll(8000)
        r.nic.breaks.clear()
        r.poll(10000)
        r.link()
        assert r.resets == 0 and r.wifi.restarts > 1
    # The next network may do.
    r = Radio(networks=[HOME, PHONE])
    r.nic.breaks.add("connect")
    r.wifi.start()
    r.poll()
    r.nic.breaks.clear()
    r.poll(2000)
    assert r.nic.said()[-1] == JOIN_PHONE
    # What WiFi can do without is no reason for anything.
    r = Radio(tx_power=99)
    r.nic.breaks |= {"txpower", "pm"}
    r.up()
    assert r.wifi.error is not None and r.wifi.restarts == 0
    # Nor does one reset that must not.
    r = Radio(faults=0)
    r.nic.breaks.add("connect")
    r.wifi.start()
    r.poll(600000)
    assert r.resets == 0 and r.wifi.restarts > 60
    # A driver that cannot disconnect is no reason to stop.
    r = Radio().up()
    r.nic.breaks.add("disconnect")
    assert r.lose() == PAUSE and r.poll(1000) == CONNECTING and r.resets == 0


def test_a_board_that_is_offline_for_long_is_reset_only_if_it_shall_be() -> None:
    r = Radio(offline_ms=600000)
    r.wifi.start()
    r.poll(599900, NO_AP)
    assert r.resets == 0
    r.poll(100)
    assert r.resets == 1 == r.wifi.resets
    # The connection counts, not the link.
    r = Radio(offline_ms=600000).up()
    r.wifi.works()
    r.poll(3000000)
    r.wifi.failed(errors.E_REFUSED, 0)
    r.poll(590000)
    r.wifi.failed(errors.E_REFUSED, 0)
    assert r.resets == 0
    r.poll(10000)
    assert r.resets == 1
    r = Radio(offline_ms=600000).up()
    r.wifi.works()
    r.lose()
    r.poll(300000)
    r.nic.connected = True
    r.poll(20000)
    r.wifi.works()
    r.poll(700000)
    assert r.resets == 0


def test_power_is_saved_while_nothing_is_under_way() -> None:
    r = Radio(power_save=True).up()
    r.wifi.poll(True)
    assert not r.nic.said()
    r.now += 1000
    for _ in range(2):
        r.wifi.poll(False)
    r.wifi.poll(True)
    assert r.nic.said() == [("pm", 2), ("pm", 0)]
    r.nic.breaks.add("pm")
    r.now += 1000
    assert r.wifi.poll(False) and r.wifi.error is not None
    r = Radio().up()
    r.wifi.poll(False)
    assert not r.nic.said()
    # Where Bluetooth needs it, the driver's own setting stays.
    r = Radio(power_save=None)
    r.wifi.start()
    r.poll()
    r.wifi.poll(False)
    assert r.nic.said() == [("active", True), ("reconnects", 0), JOIN_HOME]


def test_power_is_not_saved_while_one_of_two_keepers_is_busy() -> None:
    r = Radio(power_save=True).up()
    for _ in range(100):
        r.now += 50
        r.wifi.poll(True)
        r.wifi.poll(False)
    assert not r.nic.said()
    for _ in range(100):
        r.now += 50
        r.wifi.poll(False)
        r.wifi.poll(False)
    assert r.nic.said() == [("pm", 2)]


def test_security_is_for_the_port_that_takes_it() -> None:
    for port, said in ((RP2, ("connect", "lab", "password", None, 0x1000004)), (ESP32, JOIN_LAB)):
        r = Radio(port, networks=(("lab", "password", None, 0x1000004),)).begin()
        assert said in r.nic.said()


def test_a_country_or_hostname_of_the_wrong_length_is_refused_with_a_text() -> None:
    for options, text in (
        ({"country": "DEU"}, "country: DEU has not two letters"),
        ({"country": ""}, "country:  has not two letters"),
        ({"hostname": "h" * 33}, "hostname: " + "h" * 33 + " has not 1 to 32 characters"),
        ({"hostname": ""}, "hostname:  has not 1 to 32 characters"),
    ):
        said = ""
        try:
            Radio(**options)  # type: ignore[arg-type]
        except ValueError as e:
            said = str(e)
        assert said == text


def test_it_stops() -> None:
    r = Radio().up()
    r.wifi.stop()
    assert r.nic.said() == [("disconnect",), ("active", False)]
    # An RP2 that leaves a network would switch its radio on for it.
    r.wifi.stop()
    assert r.poll(10000) == OFF and not r.nic.calls
    r.up()


def test_a_restart_switches_the_radio_of_an_rp2_off() -> None:
    r = Radio(RP2)
    r.nic.deinit = lambda: r.nic.calls.append("deinit")  # type: ignore[attr-defined]
    r.up()
    for _ in range(3):
        r.wifi.failed(errors.E_TIMEOUT, 0)
    assert r.nic.said() == [("disconnect",), ("active", False), "deinit"]
    assert r.poll(1000) == CONNECTING and r.nic.said() == [("active", True), ("pm", 0), JOIN_HOME]


def test_reasons_have_texts() -> None:
    r = Radio()
    for code, text in ((202, "wrong password"), (-2, "no access point found"), (15, "reason 15")):
        r.wifi.status = code
        assert r.wifi.reason == text


def test_ethernet_waits_for_its_cable() -> None:
    r = Radio()
    ethernet = Ethernet(r.nic, reset=r.reset)
    r.drive(ethernet)
    ethernet.start()
    assert r.poll() == CONNECTING and r.nic.said() == [("active", True), ("dhcp4", True)]
    r.poll(3600000)
    assert r.resets == 0 and ethernet.restarts > 1
    r.nic.connected = True
    assert r.poll(20000) == UP
    r.nic.connected = False
    assert r.poll(5000) == CONNECTING and ethernet.lost == 1
    r.nic.said()
    ethernet = Ethernet(r.nic, address=ADDRESS)
    r.nic.is_active = False
    r.drive(ethernet)
    ethernet.start()
    assert r.poll() == CONNECTING and r.nic.said() == [("active", True), ("ifconfig", ADDRESS)]


def test_an_interface_that_the_program_connects() -> None:
    nic = Nic()
    network = Connected(nic)
    network.start()
    assert not network.poll()
    nic.connected = True
    assert network.poll(False)
    network.failed(errors.E_TIMEOUT, 0)
    network.works()
    network.stop()
    assert network.poll() and not nic.calls and Connected().poll()
