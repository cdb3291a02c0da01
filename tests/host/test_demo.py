"""What the demo waits for: that the acknowledged messages are in the log."""

import json
from pathlib import Path

from headwater_host.capture import RECEIVED
from headwater_host.capture.writer import CaptureWriter
from tools.demo.result import wait_for_messages


def test_it_waits_for_what_was_acknowledged_and_names_what_is_missing(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as log:
        for seq in range(300):
            values = json.dumps({"board": "b", "boot": 1, "seq": seq}).encode()
            # Every byte as a packet id, a brace among them.
            frame = bytes((0x32, len(values) + 5, 0, 1, 0x74, 0, seq & 255)) + values
            log.append(1, 1, "mqtt:h:1", RECEIVED, 1, 4, frame)
        log.append(1, 1, "mqtt:h:1", RECEIVED, 1, 4, b"\xf0no packet {")
    assert wait_for_messages(tmp_path, {("b", 1, seq) for seq in range(300)}, 0) == set()
    assert wait_for_messages(tmp_path, {("b", 1, 299), ("b", 1, 300)}, 0) == {("b", 1, 300)}
