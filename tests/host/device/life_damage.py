"""Damaged boot files, times from clocks that are not set, and a dead link before the clock is set."""

import os
import sys

from pipe import Random


class Machine:
    """``machine`` with the names that these modules use."""

    times = []

    class RTC:
        def datetime(self, when):
            Machine.times.append(when)

    @staticmethod
    def reset_cause():
        return 0


sys.modules["machine"] = Machine()
# The modules of boards import it.
# ruff: noqa: E402

from headwater.link.link import Link
from headwater_board.boots import Boots
from headwater_board.clock import Sntp, TimedNetwork, set_clock
from headwater_board.service import Service
from headwater_board.sleep import load_addresses, save_addresses

PATH = "/tmp/headwater-damage-%d" % int.from_bytes(os.urandom(3), "big")


def test_no_number_repeats_if_boot_files_are_damaged():
    random = Random(7)
    used = []
    try:
        for n in range(500):
            for name in ("", "", "0", "1", "01" if n % 50 == 49 else "")[random.below(5)] if n > 1 else "":
                with open(PATH + "." + name, "wb") as file:
                    file.write(b"00000000[7]")
            used.append(Boots(PATH).boot)
    finally:
        os.remove(PATH + ".0")
        os.remove(PATH + ".1")
    assert len(set(used)) == len(used)
    assert max(used) < 1 << 32
    assert used[:2] == [1, 2]


def test_a_time_that_is_not_plausible_is_not_set():
    assert not any(map(set_clock, (-1, 0, 1577836800000, 4102444800000, 10**30)))
    assert not Machine.times
    assert set_clock(1795437296500)
    assert Machine.times.pop()[:3] == (2026, 11, 23)


def test_a_board_sleeps_although_its_flash_takes_no_addresses():
    class Known:
        addresses = {"broker.local": ["192.0.2.1"]}

    save_addresses(Known, "/nowhere/addresses")
    assert load_addresses("/nowhere/addresses") == {}


def test_lines_without_a_time_are_ignored():
    class Line:
        link = Link(1, 2, 4, 240)
        pump = None

    service = Service(Line)
    service._buf = b"time soon\ntime \ntime 99999999999999999999999999\ntime 1795437296500\n"
    service._take(len(service._buf))
    assert service.syncs == 1
    assert len(Machine.times) == 1


def test_a_network_on_which_no_time_server_answers_learns_of_it():
    class Network:
        def __init__(self):
            self.statuses = []
            self.start = self.stop = self.works = None

        def failed(self, status, errno):
            self.statuses.append(status)

        def poll(self, busy):
            return True

    network = Network()
    sntp = Sntp(("127.0.0.1",), port=9, timeout_ms=300)
    timed = TimedNetwork(network, sntp)
    timed._is_set = False
    sntp.ticks_ms = lambda: passed
    sntp._at = passed = 0
    while passed < 60000:
        assert not timed.poll()
        passed += 100
    assert network.statuses == [-61] * 3, network.statuses
