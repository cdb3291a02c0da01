"""Put a program into the simulated world: its radio, its network, its broker, and the faults.

Run it with MICROPYPATH=tools/device:... `setup` comes before the import of the program.
"""

import sys

from world import clock as clock_module
from world.clock import clock

SSID, PASSWORD = "home", "correct horse"
HOST = "broker.test"
SECOND, MINUTE = 1000, 60000

world = None


class World:
    """``air``, ``station`` and ``broker``. ``resets`` counts calls of ``machine.reset``."""

    def __init__(self, port):
        clock.restart()
        clock_module.install()
        from standins import access_point, network, radio

        from world import wire

        sys.modules["network"] = network
        sys.modules["sys"] = clock_module.Module("sys", sys, platform=port)
        self.port = port
        self.air = radio.Air()
        self.air.networks[SSID] = access_point.NETWORK.copy()
        self.air.networks[SSID]["password"] = PASSWORD
        self.air.names[HOST] = "10.0.0.2"
        self.station = network.install(port, self.air)
        # The stand-ins' sockets are on top of the simulated ones.
        sys.modules["socket"] = wire
        from standins import chip
        from standins import socket as board_socket

        chip._time = sys.modules["time"]
        board_socket.install(port)
        board_socket._open.clear()
        sys.modules["socket"] = sys.modules["usocket"] = board_socket
        import machine

        self.resets = 0
        sys.modules["machine"] = clock_module.Module(
            "machine", machine, reset=self._reset, unique_id=lambda: b"\x01\x02\x03\x04\x05\x06", Pin=chip.Pin
        )
        from world.broker import Broker

        self.broker = Broker()

    def _reset(self):
        self.resets += 1

    @property
    def access_point(self):
        """Return the only access point."""
        return self.air.networks[SSID]

    def restart_access_point(self, _=None):
        """The router comes up again and knows no stations."""
        self.access_point["starts"] += 1
        self.access_point["up"] = True


def setup(port):
    """Make the world of a board of ``port``, "esp32" or "rp2"."""
    global world
    world = World(port)
    return world


# Faults: each is a function of the world that begins it, one that ends it, and how long it lasts.


def _off(w):
    w.access_point["up"] = False


def _on(w):
    w.access_point["up"] = True


def _other_password(w):
    w.access_point["password"] = "changed"
    w.restart_access_point()


def _right_password(w):
    w.access_point["password"] = PASSWORD
    w.restart_access_point()


def _slow_dhcp(w):
    w.access_point["dhcp_ms"] = 12 * SECOND
    w.restart_access_point()


def _no_dhcp(w):
    w.access_point["dhcp_ms"] = None
    w.restart_access_point()


def _dhcp(w):
    w.access_point["dhcp_ms"] = 300


def _nothing(w):
    pass


def _dead(w):
    w.access_point["dead"] = True


def _alive(w):
    w.access_point["dead"] = False


def _no_broker(w):
    w.broker.kill()


def _broker(w):
    w.broker.start()


def _no_names(w):
    # The connection is lost at the same time, so that the name is needed.
    w.air.dns = False
    w.broker.kill()
    w.broker.start()


def _names(w):
    w.air.dns = True


FAULTS = (
    ("access point off, 1 s", _off, _on, 1 * SECOND),
    ("access point off, 1 min", _off, World.restart_access_point, 1 * MINUTE),
    ("access point off, 10 min", _off, World.restart_access_point, 10 * MINUTE),
    ("wrong password, 2 min", _other_password, _right_password, 2 * MINUTE),
    ("DHCP after 12 s", _slow_dhcp, _nothing, 0),
    ("no DHCP, 2 min", _no_dhcp, _dhcp, 2 * MINUTE),
    ("dead link, 10 min", _dead, _alive, 10 * MINUTE),
    ("broker off, 1 min", _no_broker, _broker, 1 * MINUTE),
    ("no DNS, 2 min", _no_names, _names, 2 * MINUTE),
)
