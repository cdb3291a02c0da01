"""The table of status codes in docs/wifi.md says what the machine does."""

import re
import sys

from tools.toolchain import ROOT

sys.path.insert(0, str(ROOT / "tests" / "portable"))

from scripted_nic import ESP32, RP2, Network, Nic

from headwater_board.wifi import _FAILED_MS, _STALE_MS, Wifi

ROW = re.compile(r"^\| (-?\d+(?:, \d+)*) \| (ESP32|RP2) \| .* \| ([^|]+) \|$", re.MULTILINE)


def test_status_codes_do_what_the_page_says() -> None:
    found = ROW.findall((ROOT / "docs" / "wifi.md").read_text(encoding="utf-8"))
    codes = [(int(code), port, action) for row, port, action in found for code in row.split(", ")]
    assert len(codes) == 18
    for code, port, action in codes:
        Network.STAT_GOT_IP = ESP32 if port == "ESP32" else RP2
        Network.nic = nic = Nic()
        wifi = Wifi([("ssid", "password")])
        wifi.ticks_ms = lambda: 0
        wifi.start()
        # What was shown before this attempt.
        nic.code = code
        wifi.poll()
        assert not wifi._is_over(0)
        assert wifi.reason != f"reason {code}"
        fails = wifi._is_over(_STALE_MS)
        assert fails == action.startswith("failed"), code
        # An earlier reason may be that of the attempt before, which only an ESP32 keeps.
        assert wifi._is_over(_FAILED_MS) == (fails and port == "RP2"), code
