"""``network`` of ESP32 (ports/esp32/network_wlan.c, network_lan.c) and RP2 (extmod/network_cyw43.c, -wiznet5k.c).

``install`` gives this module the names of one port.
"""

import json
import time

from standins import radio

_HOSTNAME_SIZE = 32  # extmod/modnetwork.h
_NO_ADDRESS = ("0.0.0.0", "0.0.0.0", "0.0.0.0", "0.0.0.0")
_LEASE = ("192.168.4.2", "255.255.255.0", "192.168.4.1", "192.168.4.1")

_station = None
_cable = None
_country = "XX"
_hostname = ""


def country(code=None):
    """extmod/modnetwork.c: two letters, "XX" at first."""
    global _country
    if code is None:
        return _country
    if len(code) != 2:
        raise ValueError
    _country = code


def hostname(name=None):
    """extmod/modnetwork.c: at most 32 characters."""
    global _hostname
    if name is None:
        return _hostname
    if len(name) > _HOSTNAME_SIZE:
        raise ValueError
    _hostname = name


def ipconfig(what=None, **values):
    """Only the name server's address (docs/library/network.rst)."""
    if what == "dns":
        return _address_of(_station)[3]
    if what is not None or [name for name in values if name not in ("dns", "prefer")]:
        raise ValueError("unexpected key")


def route():
    """Return what a packet meets now: over the cable if it is connected, else by radio."""
    if _cable is not None and _cable.isconnected():
        return radio.PASSES
    return _station.route()


def on_abort(call):
    """Set the function that aborts the sockets."""
    _station.on_abort = call


def air():
    """Return the air."""
    return _station.air


def _address_of(station):
    if station.static:
        return station.static
    station.look()
    return _LEASE if station.phase == radio.UP else _NO_ADDRESS


class _Interface:
    """What every interface has: ``ifconfig``, ``ipconfig``."""

    def ifconfig(self, address=None):
        if address is None:
            return _address_of(self._driver)
        if address == "dhcp":
            self._driver.static = None
        elif len(address) == 4 and not isinstance(address, str):
            self._driver.static = tuple(address)
        else:
            raise ValueError("invalid arguments")

    def ipconfig(self, what=None, **values):
        ip, mask, gateway, _ = _address_of(self._driver)
        if what is not None:
            known = {"addr4": (ip, mask), "gw4": gateway, "dhcp4": self._driver.static is None}
            if what not in known:
                raise ValueError("unexpected key")
            return known[what]
        for name, value in values.items():
            if name == "dhcp4":
                if value:
                    self._driver.static = None
            elif name == "addr4":
                address = value if isinstance(value, tuple) else (value, "255.255.255.0")
                self._driver.static = address + (gateway, gateway)
            elif name == "gw4":
                self._driver.static = (ip, mask, value, value)
            else:
                raise ValueError("unexpected key")


class _Wlan(_Interface):
    """A station, or an access point that does nothing."""

    IF_STA = 0
    IF_AP = 1

    def __init__(self, interface=0):
        if interface not in (0, 1):
            raise ValueError("invalid WLAN interface identifier")
        self._is_ap = interface == 1
        self._driver = self._unused if self._is_ap else _station
        self._settings = self._all_settings[interface]

    def connect(self, ssid=None, key=None, *, bssid=None, **more):
        if bssid is not None and len(bssid) != 6:
            raise ValueError
        self._connect(ssid, key, bssid, more)

    def disconnect(self):
        self._driver.disconnect()

    def isconnected(self):
        self._driver.look()
        return self._driver.phase == radio.UP

    def status(self, what=None):
        if what is None:
            return self._driver.status()
        if what == "rssi":
            self._driver.look()
            net = self._driver.network()
            if net is None or self._driver.phase < radio.WAITING_FOR_ADDRESS:
                return self._no_rssi()
            return net["rssi"]
        if what == "stations" and self._is_ap:
            return []
        raise ValueError("unknown status param")

    def scan(self, **options):
        """Blocks. (ssid, bssid, channel, rssi, security, hidden or the number of results)."""
        self._driver.look()
        if not self._driver.active:
            raise OSError("STA must be active")
        time.sleep_ms(self._driver.air.ms("scan"))
        return [
            (
                ssid.encode(),
                bytes.fromhex(net["bssid"]),
                net["channel"],
                net["rssi"],
                3 if net["password"] else 0,
                self._last_of_scan,
            )
            for ssid, net in self._driver.air.networks.items()
            if net["up"]
        ]

    def config(self, *names, **values):
        if names and values:
            raise TypeError("either pos or kw args are allowed")
        if not values:
            if len(names) != 1:
                raise TypeError("can query only one param")
            return self._query(names[0])
        for name, value in values.items():
            if name not in self._settable:
                raise ValueError("unknown config param")
            self._set(name, value)

    def _query(self, name):
        if name == "mac":
            return b"\x02\x00\x00\x00\x00\x01"
        if name in ("ssid", "essid"):
            return self._driver.ssid
        if name in ("hostname", "dhcp_hostname"):
            return hostname()
        if name not in self._settings:
            raise ValueError("unknown config param")
        return self._settings[name]

    def _set(self, name, value):
        if name in ("hostname", "dhcp_hostname"):
            hostname(value)
        else:
            self._settings[name] = value


class _Esp32Wlan(_Wlan):
    # WIFI_PS_NONE, WIFI_PS_MIN_MODEM (ESP-IDF's default), WIFI_PS_MAX_MODEM.
    PM_NONE = 0
    PM_PERFORMANCE = 1
    PM_POWERSAVE = 2
    SEC_OPEN = 0
    SEC_WPA2 = 3
    SEC_WPA_WPA2 = 4
    SEC_WPA3 = 6
    PROTOCOL_DEFAULT = 7

    _settable = (
        "mac ssid essid hidden security authmode key password channel bandwidth hostname dhcp_hostname max_clients"
        " reconnects txpower protocol pm"
    ).split()
    _last_of_scan = False

    def active(self, on=None):
        if on is not None:
            self._driver.set_active(bool(on))
        return self._driver.active

    def _connect(self, ssid, key, bssid, more):
        if more:
            raise TypeError("extra keyword arguments given")
        self._driver.connect(ssid, key, bssid)

    def _no_rssi(self):
        raise OSError("Wifi Not Connected")

    def _query(self, name):
        if name == "reconnects":
            return self._driver.conf_reconnects - 1
        return super()._query(name)

    def _set(self, name, value):
        # esp_wifi_get_config, which precedes every setting, needs no started interface; esp_wifi_set_max_tx_power
        # (ESP-IDF: ESP_ERR_WIFI_NOT_START) does.
        if name == "txpower" and not self._driver.active:
            raise OSError("Wifi Not Started")
        if name == "reconnects":
            self._driver.conf_reconnects = value + 1
            self._driver.save()
        elif name == "pm" and value not in (0, 1, 2):
            raise RuntimeError("Wifi Unknown Error 0x0102")
        else:
            super()._set(name, value)


class _Rp2Wlan(_Wlan):
    PM_NONE = 0x10
    PM_PERFORMANCE = 0xA11142
    PM_POWERSAVE = 0x11
    SEC_OPEN = 0
    SEC_WPA_WPA2 = 0x00400006
    SEC_WPA3 = 0x01000004
    SEC_WPA2_WPA3 = 0x01400004

    _settable = "antenna channel ssid essid monitor security key password pm trace txpower hostname".split()
    _last_of_scan = 1

    def active(self, on=None):
        if on is None:
            return self._driver.active
        self._driver.set_active(bool(on))
        if on:
            # cyw43_wifi_set_up sets the default power management each time that the chip is switched on.
            self._settings.setdefault("pm", self.PM_PERFORMANCE)

    def deinit(self):
        self._driver.set_active(False)
        self._settings.pop("pm", None)

    def _connect(self, ssid, key, bssid, more):
        if ssid is None:
            raise TypeError("'ssid' argument required")
        if [name for name in more if name not in ("auth", "security", "channel")]:
            raise TypeError("extra keyword arguments given")
        security = more.get("security", more.get("auth", -1))
        self._driver.sae = security in (self.SEC_WPA3, self.SEC_WPA2_WPA3)
        self._driver.connect(ssid, key, bssid)

    def _no_rssi(self):
        return 0


class _CableDriver:
    """An Ethernet interface's view of the cable."""

    static = None

    def __init__(self, air):
        self.air = air
        self.active = False
        self._since = 0

    @property
    def phase(self):
        self.air.refresh()
        if not self.active or not self.air.cable:
            self._since = time.ticks_ms()
            return radio.IDLE
        wait = 0 if self.static else int(300 * self.air.pace)
        return (
            radio.UP if time.ticks_diff(time.ticks_ms(), self._since) >= wait else radio.WAITING_FOR_ADDRESS
        )

    def look(self):
        """The phase is computed when it is read."""


class _Ethernet(_Interface):
    def __init__(self):
        global _cable
        if _cable is None:
            _cable = self
            self._driver = _CableDriver(_station.air)
        else:
            self._driver = _cable._driver

    def isconnected(self):
        return self._driver.phase == radio.UP

    def config(self, *names, **values):
        if names == ("mac",):
            return b"\x02\x00\x00\x00\x00\x02"
        if names:
            raise ValueError("unknown config param")

    def active(self, on=None):
        if on is not None:
            self._driver.active = bool(on)
        return self._driver.active


class _Lan(_Ethernet):
    """network_lan.c: ``status`` is the last event's number."""

    def __init__(self, id=0, *, phy_addr, phy_type, **pins):
        if id != 0:
            raise ValueError("invalid LAN interface identifier")
        if not 0 <= phy_addr <= 31:
            raise ValueError("invalid phy address")
        if phy_type < 100 and not ("mdc" in pins and "mdio" in pins):
            raise ValueError("mdc and mdio must be specified")
        super().__init__()

    def status(self):
        if not self._driver.active:
            return _ESP32_NAMES["ETH_INITIALIZED"]
        phase = self._driver.phase
        if phase == radio.UP:
            return _ESP32_NAMES["ETH_GOT_IP"]
        return _ESP32_NAMES["ETH_CONNECTED" if phase == radio.WAITING_FOR_ADDRESS else "ETH_DISCONNECTED"]


class _Wiznet5k(_Ethernet):
    """network_wiznet5k.c: active once constructed; ``status`` is 0 (no cable), 1 (inactive) or 2."""

    def __init__(self, *wires):
        # spi, cs, rst and perhaps the interrupt's pin; none on a board that has the chip on it.
        if len(wires) not in (0, 3, 4):
            raise TypeError("function missing required positional arguments")
        super().__init__()
        self._driver.active = True

    def active(self, on=None):
        state = super().active(on)
        return state if on is None else None

    def status(self):
        if not self._driver.air.cable:
            return 0
        return 2 if self._driver.active else 1


# modnetwork_globals.h, and the reasons of ESP-IDF.
_ESP32_NAMES = {
    "STA_IF": 0,
    "AP_IF": 1,
    "STAT_IDLE": 1000,
    "STAT_CONNECTING": 1001,
    "STAT_GOT_IP": 1010,
    "STAT_NO_AP_FOUND": 201,
    "STAT_NO_AP_FOUND_W_COMPATIBLE_SECURITY": 210,
    "STAT_NO_AP_FOUND_IN_AUTHMODE_THRESHOLD": 211,
    "STAT_NO_AP_FOUND_IN_RSSI_THRESHOLD": 212,
    "STAT_WRONG_PASSWORD": 202,
    "STAT_BEACON_TIMEOUT": 200,
    "STAT_ASSOC_FAIL": 203,
    "STAT_CONNECT_FAIL": 203,
    "STAT_HANDSHAKE_TIMEOUT": 204,
    "MODE_11B": 1,
    "MODE_11G": 2,
    "MODE_11N": 4,
    "PHY_LAN8710": 0,
    "PHY_LAN8720": 1,
    "PHY_IP101": 2,
    "PHY_RTL8201": 3,
    "PHY_DP83848": 4,
    "PHY_KSZ8041": 5,
    "PHY_KSZ8081": 6,
    "PHY_W5500": 102,
    "ETH_INITIALIZED": 0,
    "ETH_STARTED": 1,
    "ETH_STOPPED": 2,
    "ETH_CONNECTED": 3,
    "ETH_DISCONNECTED": 4,
    "ETH_GOT_IP": 5,
}
# extmod/modnetwork.c
_RP2_NAMES = {
    "STA_IF": 0,
    "AP_IF": 1,
    "STAT_IDLE": 0,
    "STAT_CONNECTING": 1,
    "STAT_WRONG_PASSWORD": -3,
    "STAT_NO_AP_FOUND": -2,
    "STAT_CONNECT_FAIL": -1,
    "STAT_GOT_IP": 3,
}
_KEPT = ("active", "phase", "ssid", "password", "static", "requested", "reason", "conf_reconnects", "_starts")


def _saver(file):
    def save(station):
        state = {name: getattr(station, name) for name in _KEPT if hasattr(station, name)}
        file.seek(0)
        file.write(json.dumps(state) + "\n")

    return save


def install(port, air, file=None):
    """Make this module that of ``port``, "esp32" or "rp2". ``file`` keeps what survives a soft reset.

    Neither port takes its station down at a soft reset (ports/esp32/main.c, ports/rp2/main.c): the interface is still
    active, perhaps connected, while every socket is gone.
    """
    global _station, _cable
    here = globals()
    driver = radio.Esp32 if port == "esp32" else radio.Rp2
    _station = driver(air, None if file is None else _saver(file))
    _cable = None
    if file is not None:
        file.seek(0)
        line = file.readline()
        if line:
            for name, value in json.loads(line).items():
                setattr(_station, name, tuple(value) if name == "static" and value else value)
            _station._since = time.ticks_ms()
    hostname("mpy-" + port)
    country("XX")
    wlan = _Esp32Wlan if port == "esp32" else _Rp2Wlan
    wlan._unused = driver(air)
    wlan._all_settings = ({}, {})
    here["WLAN"] = wlan
    if port == "esp32":
        here["LAN"] = _Lan
        here.update(_ESP32_NAMES)
    else:
        here["WIZNET5K"] = _Wiznet5k
        here.update(_RP2_NAMES)
    return _station
