"""The radio: what is on the air, and how the drivers of ESP32 and RP2 join a network.

The drivers are lazy: each query first makes the steps that are due by now. So one implementation serves the virtual
board, whose clock is real, and the simulated world, whose clock jumps.
"""

import time

# What a packet of the board meets.
NO_ROUTE = 0
SILENT = 1
PASSES = 2

# Phases of a driver.
IDLE = 0
JOINING = 1
WAITING_FOR_ADDRESS = 2
UP = 3

# Results of joining.
JOINED = 0
NO_NETWORK = 1
BAD_PASSWORD = 2

_HALF = 1 << 29
_MASK = (1 << 30) - 1

#: Milliseconds. None of the ports' sources states them; they are of the order that users and drivers' logs report.
TIMES = {
    # Scan until the network is found, authentication, association and the handshake.
    "join": 1200,
    # A scan of all channels that finds nothing.
    "no network": 2400,
    # The access point drops the handshake's second message; the station waits.
    "bad password": 3000,
    # Beacons are missing until the station gives up. ESP-IDF: esp_wifi_set_inactive_time, 6 s by default.
    "no beacon": 6000,
    # ESP32 reports IDLE so long before GOT_IP (micropython-mqtt, README: "status values >= STAT_IDLE can occur").
    "idle before address": 100,
    # A program that calls connect() sooner than this after a failure or disconnect(), when the access point has
    # restarted, fails with 202 (micropython-mqtt, pull request 154). The driver's own attempts are not concerned.
    "pause after restart": 1000,
    # One scan by the program: blocks.
    "scan": 2000,
    # TCP's first retransmission; each further one waits twice as long (lwIP, src/core/tcp.c: a clock of 500 ms).
    "retransmission": 1000,
    # lwIP, src/core/dns.c, dns_check_entry: four attempts, after 1, 1, 2 and 3 s.
    "no name server": 7000,
}


class Air:
    """Access points, the name service, and the cable of an Ethernet interface.

    ``networks`` maps an SSID to a dict: password ("" is an open network), bssid (hexadecimal), channel, rssi, up, dead
    (the link carries nothing and nobody notices), dhcp_ms (None: no DHCP server), reason (the status that a wrong
    password or a refusal has on ESP32, 0: the usual one), refuses (joining fails with that reason), wpa3 (joining needs
    WPA3), starts (how often the access point was started).
    """

    def __init__(self):
        self.networks = {}
        #: All durations are multiplied by this.
        self.pace = 1.0
        self.dns = True
        #: Addresses by name.
        self.names = {}
        #: Port of 127.0.0.1 by "address:port" of the board's world.
        self.reach = {}
        self.cable = True

    def refresh(self):
        """Take over what the host has changed."""

    def ms(self, what):
        """Return a duration of ``TIMES``, at this pace."""
        return int(TIMES[what] * self.pace)


class FileAir(Air):
    """The air that the host describes in a file: a generation (4 bytes), then JSON and a newline."""

    def __init__(self, file):
        super().__init__()
        self._file = file
        self._seen = bytearray(4)
        self._now = bytearray(4)

    def refresh(self):
        self._file.seek(0)
        self._file.readinto(self._now)
        if self._now == self._seen:
            return
        import json

        try:
            state = json.loads(self._file.readline())
        except ValueError:
            return  # the host is writing; the next query reads it again
        self._seen[:] = self._now
        for name, value in state.items():
            setattr(self, name, value)


class Station:
    """The part that both drivers share: one station, joining, its address, and the loss of beacons."""

    def __init__(self, air, save=None):
        self.air = air
        self.active = False
        self.phase = IDLE
        self.ssid = self.password = ""
        self.bssid = None
        #: Whether the station can join with WPA3.
        self.sae = True
        #: (ip, mask, gateway, dns), or None: DHCP.
        self.static = None
        self._since = 0
        self._due = 0
        self._result = JOINED
        self._gone = False
        self._gone_at = 0
        self._starts = 0
        self._saved = save
        #: Called when the interface loses its address: the sockets are aborted.
        self.on_abort = None

    def look(self):
        """Make the steps that are due."""
        self.air.refresh()
        now = time.ticks_ms()
        for _ in range(1000):
            if not self._step(now):
                return
            self.save()

    def save(self):
        """Keep what survives a soft reset."""
        if self._saved is not None:
            self._saved(self)

    def network(self):
        """Return the network in range that the station is to join, or None."""
        net = self.air.networks.get(self.ssid)
        if net is None or not net["up"] or (self.bssid and self.bssid != bytes.fromhex(net["bssid"])):
            return None
        return net

    def join(self, at, refused=False):
        """Start to join at the time ``at``. A ``refused`` station is treated as one with a wrong password."""
        net = self.network()
        self.phase = JOINING
        self._since = at
        self._gone = False
        if net is None:
            self._result = NO_NETWORK
            self._due = self.air.ms("no network")
        elif (
            (net["wpa3"] and not self.sae)
            or refused
            or net["refuses"]
            or (net["password"] and net["password"] != self.password)
        ):
            self._result = BAD_PASSWORD
            self._due = self.air.ms("bad password")
        else:
            self._result = JOINED
            self._due = self.air.ms("join")

    def leave(self):
        """Leave the network, or stop joining."""
        self.phase = IDLE
        self._gone = False

    def stop(self):
        """Take the interface down. lwIP (tcp_netif_ip_addr_changed) aborts the connections of its address."""
        self.leave()
        self.active = False
        if self.on_abort is not None:
            self.on_abort()

    def failed(self, result, at):
        """Joining has failed."""

    def lost(self, at):
        """The station has given up its access point."""

    def got_address(self):
        """The station has an address."""

    def route(self):
        """Return what a packet meets: NO_ROUTE, SILENT or PASSES."""
        self.look()
        if self.phase != UP:
            return NO_ROUTE
        net = self.network()
        # A restarted access point knows no stations.
        return PASSES if net is not None and not net["dead"] and net["starts"] == self._starts else SILENT

    def _step(self, now):
        if self.phase == IDLE:
            return False
        age = (now - self._since) & _MASK
        net = self.network()
        if self.phase == JOINING:
            if age < self._due or age > _HALF:
                return False
            at = (self._since + self._due) & _MASK
            if self._result == JOINED and net is None:
                self._result = NO_NETWORK
            if self._result != JOINED:
                self.phase = IDLE
                self.failed(self._result, at)
                return True
            self.phase = WAITING_FOR_ADDRESS
            self._since = at
            self._starts = net["starts"]
            return True
        if net is None or net["starts"] != self._starts:
            # No beacons; or a restarted access point, to which the station is as good as gone.
            if not self._gone:
                self._gone = True
                self._gone_at = now
            elif (now - self._gone_at) & _MASK >= self.air.ms("no beacon"):
                self.phase = IDLE
                self.lost((self._gone_at + self.air.ms("no beacon")) & _MASK)
                return True
            if net is None:
                return False
        elif self._gone:
            self._gone = False
        if self.phase == WAITING_FOR_ADDRESS and not net["dead"]:
            wait = 0 if self.static else net["dhcp_ms"]
            if wait is not None and age >= int(wait * self.air.pace) + self.settle_ms():
                self.phase = UP
                self.got_address()
                return True
        return False

    def settle_ms(self):
        """Return how long the driver needs beyond DHCP."""
        return 0


class Esp32(Station):
    """ports/esp32/network_wlan.c over ESP-IDF's driver."""

    IDLE = 1000
    CONNECTING = 1001
    GOT_IP = 1010
    # wifi_err_reason_t of ESP-IDF.
    ASSOC_LEAVE = 8
    BEACON_TIMEOUT = 200
    NO_AP_FOUND = 201
    AUTH_FAIL = 202
    CONNECTION_FAIL = 205

    def __init__(self, air, save=None):
        super().__init__(air, save)
        # network_wlan.c keeps these in static variables, which a soft reset leaves as they are.
        self.requested = False
        self.reason = 0
        self.conf_reconnects = 0  # 0: for ever
        self.reconnects = 0
        self._failed_at = None

    def status(self):
        """network_wlan_status: the last reason hides what the driver is doing, until an address clears it."""
        self.look()
        reason = self.reason
        if self.phase == UP:
            return self.GOT_IP
        if self.phase == WAITING_FOR_ADDRESS and not reason:
            age = (time.ticks_ms() - self._since) & _MASK
            if age < self.air.ms("idle before address"):
                return self.IDLE
        if reason == self.CONNECTION_FAIL:
            return self.AUTH_FAIL
        if reason in (self.NO_AP_FOUND, self.AUTH_FAIL, 210, 211, 212):
            return reason
        if reason == self.ASSOC_LEAVE:
            return self.IDLE
        if self.requested and (not self.conf_reconnects or self.reconnects < self.conf_reconnects):
            return self.CONNECTING
        return reason or self.IDLE

    def settle_ms(self):
        return self.air.ms("idle before address")

    def set_active(self, on):
        """network_wlan_active: stopping does not withdraw the request to be connected, and starting does not join."""
        self.look()
        if on and not self.active:
            self.active = True
            self.reconnects = 0
        elif not on and self.active:
            if self.phase != IDLE:
                self.reason = self.ASSOC_LEAVE
            self.stop()
        self.save()

    def connect(self, ssid, password, bssid):
        """network_wlan_connect: refused while the driver connects.

        (esp_wifi_set_config: ESP_ERR_WIFI_STATE; without an SSID esp_wifi_connect: ESP_ERR_WIFI_CONN.)
        """
        self.look()
        if not self.active:
            raise OSError("Wifi Not Started")
        if self.phase == JOINING:
            raise OSError("Wifi Internal Error" if ssid is None else "Wifi Internal State Error")
        if ssid is not None:
            self.ssid, self.password, self.bssid = ssid, password or "", bssid
        self.reconnects = 0
        self.requested = True
        if self.phase == IDLE:
            now = time.ticks_ms()
            net = self.network()
            # A program that is too quick after a router's restart gets 202 again and again.
            restarted = net is not None and self._starts and net["starts"] != self._starts
            soon = self._failed_at is not None and (now - self._failed_at) & _MASK < self.air.ms(
                "pause after restart"
            )
            self.join(now, restarted and soon)
        self.save()

    def disconnect(self):
        """network_wlan_disconnect: the event says ASSOC_LEAVE, which ``status`` shows as IDLE."""
        self.look()
        self.requested = False
        if not self.active:
            raise OSError("Wifi Not Started")
        if self.phase != IDLE:
            self.reason = self.ASSOC_LEAVE
            self.leave()
            self._failed_at = time.ticks_ms()
        self.save()

    def failed(self, result, at):
        net = self.network()
        given = net["reason"] if net is not None else 0
        self._disconnected(self.NO_AP_FOUND if result == NO_NETWORK else given or self.AUTH_FAIL, at)

    def lost(self, at):
        self._disconnected(self.BEACON_TIMEOUT, at)

    def got_address(self):
        self.reason = 0
        self._failed_at = None

    def _disconnected(self, reason, at):
        """WIFI_EVENT_STA_DISCONNECTED: the driver tries again by itself, for ever unless ``reconnects`` is set."""
        self.reason = reason
        self._failed_at = at
        if self.requested and self.active:
            if self.conf_reconnects:
                self.reconnects += 1
                if self.reconnects >= self.conf_reconnects:
                    return
            self.join(at)


class Rp2(Station):
    """extmod/network_cyw43.c over cyw43-driver."""

    DOWN = 0
    JOIN = 1
    NO_IP = 2  # has no name in ``network``
    LINK_UP = 3
    FAIL = -1
    NO_NET = -2
    BAD_AUTH = -3

    def __init__(self, air, save=None):
        super().__init__(air, save)
        self._join_state = self.DOWN

    def status(self):
        """cyw43_tcpip_link_status."""
        self.look()
        if self.phase == UP:
            return self.LINK_UP
        return self.NO_IP if self.phase == WAITING_FOR_ADDRESS else self._join_state

    def set_active(self, on):
        """network_cyw43_active: down means leaving, and removing lwIP's interface."""
        self.look()
        if on:
            self.active = True
        elif self.active:
            self._join_state = self.DOWN
            self.stop()
        self.save()

    def connect(self, ssid, password, bssid):
        """cyw43_wifi_join: EPERM while the interface is down; a running attempt is replaced."""
        self.look()
        if not self.active:
            raise OSError(1)
        self.ssid, self.password, self.bssid = ssid, password or "", bssid
        self._join_state = self.JOIN
        self.join(time.ticks_ms())
        self.save()

    def disconnect(self):
        """cyw43_wifi_leave; CYW43_EV_DISASSOC clears the state of joining."""
        self.look()
        self._join_state = self.DOWN
        self.leave()
        self.save()

    def failed(self, result, at):
        # CYW43_EV_SET_SSID, CYW43_EV_PSK_SUP. The driver does not try again.
        self._join_state = self.NO_NET if result == NO_NETWORK else self.BAD_AUTH

    def lost(self, at):
        # CYW43_EV_LINK with the flag clear takes lwIP's link down and leaves the state of joining: the status is then
        # 1, "connecting", though nothing connects.
        self._join_state = self.JOIN
