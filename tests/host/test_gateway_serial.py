"""The gateway with boards on serial lines: a process of its own, ptys, and the core's client at the other end."""

import asyncio
import itertools
import json
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from headwater.errors import E_REFUSED, HeadwaterError
from headwater_host.capture import CaptureReader, verify
from headwater_host.capture.format import DUPLICATE, ORIGINAL
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.mqtt_board import MqttBoard
from headwater_host.gateway.source import GATEWAY_STATISTICS, SOURCE_STATISTICS
from tests.host.command import headwater, running
from tests.host.gateway_peers import (
    PtyBoard,
    PtyLine,
    end,
    gateway,
    log_has,
    recorded,
    running_gateway,
    serve,
)
from tests.host.recording import recording, task_of
from tests.waiting import PATIENCE_S, wait_until


def payloads(directory: Path) -> list[bytes]:
    return [message.payload for message in recorded(directory / "log")]


def test_what_a_board_publishes_is_recorded_at_every_qos(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        assert not board.client.session_present
        for i in range(30):
            assert board.publish(b"%d" % i, i % 3, b"board/x") >= 0
        kept = board.client.publish(b"board/kept", b"", 1, True)
        board.under_way[kept] = b"kept"
        board.client.publish(b"large", bytes(20), 0)
        serve(board, lambda: len(board.acknowledged) == 21 and log_has(tmp_path, 32), "all is recorded")
        board.client.disconnect()
        command.wait_for("disconnected")
        assert end(command, board) == 0
        assert f"serial:{line.path}: board-1 connected" in command.errors
        # The gateway opens no channel that this board does not have.
        assert board.dialer.link.foreign == 0
    messages = list(recorded(tmp_path / "log"))
    assert {(m.peer, m.dup) for m in messages} == {(f"serial:{line.path}", False)}
    assert len({m.connection for m in messages}) == 1
    for qos in range(3):
        numbers = [int(m.payload) for m in messages if m.topic == "board/x" and m.qos == qos]
        assert numbers == list(range(qos, 30, 3))
    assert [m.retain for m in messages if m.topic == "board/kept"] == [True]
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert (stats["records"], stats["durable"], stats["waiting"], stats["error"]) == (32, 32, 0, None)
    (source,) = stats["sources"]
    assert stats.keys() == GATEWAY_STATISTICS.keys()
    assert source.keys() == SOURCE_STATISTICS.keys() - {"protocol", "full_windows", "clients", "storage"}
    assert source["records"] == {"qos0": 11, "qos1": 11, "qos2": 10}
    assert not verify(tmp_path / "log").problems


def test_what_a_board_subscribes_to_is_refused(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    answers: list[tuple[int, int]] = []
    board.client.session.on_answer = lambda packet_id, code: answers.append((packet_id, code))
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        first = board.client.subscribe(b"commands", 1)
        serve(board, lambda: answers, "SUBACK")
        second = board.client.unsubscribe(b"commands")
        serve(board, lambda: len(answers) == 2, "UNSUBACK")
        assert answers == [(first, 0x80), (second, 0)]
        assert board.client.connected
        # Without a handler the board's program is told as well, each time, and the gateway's log has it once.
        board.client.session.on_answer = None
        for _ in range(2):
            board.client.subscribe(b"commands", 1)
            with pytest.raises(HeadwaterError) as caught:
                board.client.wait(60_000)
            assert caught.value.code == E_REFUSED
            assert board.client.connected
        board.client.subscribe(b"others", 0)
        with pytest.raises(HeadwaterError):
            board.client.wait(60_000)
        command.wait_for("the subscription to others is refused")
        assert command.errors.count("the subscription to commands is refused") == 1
        board.publish(b"still there", 1)
        serve(board, lambda: board.acknowledged, "it is acknowledged")


def test_statistics_go_on_when_the_disk_takes_them_again(tmp_path: Path) -> None:
    stats = tmp_path / "folder" / "stats.json"
    command_line = ["gateway", "--capture", tmp_path / "log", "--serial", tmp_path / "none", "--stats", stats]
    with running(*command_line, directory=tmp_path) as command:
        for n in (1, 2):
            command.wait_for_count("cannot write the statistics", n)
            stats.parent.mkdir()
            command.wait_for_count("statistics are written to", n)
            assert json.loads(stats.read_text())["records"] == 0
            # Once for each change, however often it is tried.
            assert command.errors.count("cannot write the statistics") == n
            shutil.rmtree(stats.parent)


def test_a_client_id_cannot_forge_a_line_of_the_log(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line, "a\n2026 INFO forged\x1b[2J\N{SNOWMAN}".encode())
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        command.wait_for("connected")
        (said,) = [text for text in command.errors.splitlines() if "forged" in text]
    assert said.endswith(": a\ufffd2026 INFO forged\ufffd[2J\N{SNOWMAN} connected")


def test_large_messages_pass_the_line(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    large = random.Random(5).randbytes(100_000)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        board.publish(large, 1)
        serve(board, lambda: board.acknowledged, "it is acknowledged", 60)
        assert end(command, board) == 0
    assert payloads(tmp_path) == [large]


def test_a_port_that_is_not_there_is_waited_for_and_one_that_vanishes_too(
    tmp_path: Path, line: PtyLine
) -> None:
    board = PtyBoard(line)
    line.unplug()
    with running_gateway(tmp_path, serials=[line.path]) as command:
        command.wait_for("cannot be opened: No such file or directory; trying again")
        for i in range(3):
            line.plug()
            board.connect()
            board.publish(b"%d" % i, 2)
            # Whatever the state of the message is now, the cable is pulled.
            board.dialer.wait(i * 30)
            line.unplug()
            command.wait_for_count("the port is gone", i + 1)
        line.plug()
        board.connect()
        assert board.client.session_present
        serve(board, lambda: len(board.acknowledged) == 3, "all is acknowledged")
        assert end(command, board) == 0
        assert command.errors.count("trying again") >= 1
    assert payloads(tmp_path) == [b"0", b"1", b"2"]


def test_a_port_that_is_no_serial_port(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with running_gateway(tmp_path, serials=[tmp_path / "file"]) as command:
        command.wait_for("cannot be opened")
        assert command.end() == 0
        assert "Traceback" not in command.errors


def test_qos2_is_recorded_once_however_often_the_link_breaks(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    fate = random.Random(7)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        for i in range(60):
            board.publish(b"%d" % i, 2)
            for _ in range(fate.randrange(4)):
                board.client.poll()
                board.dialer.wait(fate.randrange(8))
            if i % 3 == 0:
                # The stream ends; both ends keep their sessions.
                board.client.close()
                board.connect()
        serve(board, lambda: len(board.acknowledged) == 60, "all is acknowledged")
        assert end(command, board) == 0
    assert payloads(tmp_path) == [b"%d" % i for i in range(60)]
    assert sorted(board.acknowledged, key=int) == payloads(tmp_path)


def test_a_board_that_lost_its_session_loses_no_message_of_the_next(tmp_path: Path, line: PtyLine) -> None:
    """After a power cut a board's packet ids begin anew: at the ids that the gateway still holds open, if need be."""
    with running_gateway(tmp_path, serials=[line.path]) as command:
        before = PtyBoard(line)
        before.connect()
        first = before.publish(b"before", 2)
        # Recorded, so the gateway holds the id open; the power goes before the board has heard of it.
        before.client.poll()
        wait_until(lambda: log_has(tmp_path, 1))
        after = PtyBoard(line)
        after.connect()
        assert after.client.session_present
        assert after.publish(b"after", 2) == first
        serve(after, lambda: after.acknowledged == [b"after"], "all is acknowledged")
        assert end(command, after) == 0
    assert payloads(tmp_path) == [b"before", b"after"]


def test_two_boards_and_another_board_at_the_same_port(tmp_path: Path, line: PtyLine) -> None:
    second = PtyLine(tmp_path / "ttySECOND")
    one, two = PtyBoard(line, b"one"), PtyBoard(second, b"two")
    try:
        with running_gateway(tmp_path, serials=[line.path, second.path]) as command:
            one.connect()
            two.connect()
            one.publish(b"1", 2)
            two.publish(b"2", 2)
            serve(one, lambda: one.acknowledged, "the first is acknowledged")
            serve(two, lambda: two.acknowledged, "the second is acknowledged")
            two.client.disconnect()
            third = PtyBoard(second, b"three")
            third.connect()
            # The session of the board before it is not this one's.
            assert not third.client.session_present
            third.publish(b"3", 2)
            serve(third, lambda: third.acknowledged, "the third is acknowledged")
            assert end(command, one, third) == 0
    finally:
        second.unplug()
    messages = list(recorded(tmp_path / "log"))
    assert {(m.payload, m.peer) for m in messages} == {
        (b"1", f"serial:{line.path}"),
        (b"2", f"serial:{second.path}"),
        (b"3", f"serial:{second.path}"),
    }
    assert len({m.connection for m in messages}) == 3


def test_garbage_on_the_line_costs_nothing_but_time(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    noise = random.Random(9)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        os.write(line.fd, noise.randbytes(3000))
        board.connect()
        for i in range(40):
            board.publish(b"%d" % i, 1 + i % 2)
            board.client.poll()
            if i % 4 == 0:
                os.write(line.fd, noise.randbytes(noise.randrange(1, 60)) + b"\r\n>>> MPY: soft reboot\r\n")
        serve(board, lambda: len(board.acknowledged) == 40, "all is acknowledged", 60)
        assert end(command, board) == 0
    assert sorted(set(payloads(tmp_path)), key=int) == [b"%d" % i for i in range(40)]


#: Bytes of a board that break the protocol, and the part that is recorded.
BAD = {
    "3005 0002c3 28 41": "30050002c32841",  # not UTF-8
    "3206 000161 0000 41": "32060001610000 41",  # packet id 0
    "36050001610001": "36050001610001",  # QoS 3
    "30ffffffff7f": "30ffffffff7f",  # a length of five bytes
    "f000": "f000",  # a reserved type
    "30 8300 000261": "308300000261",  # the topic is beyond the packet, the length longer than it needs
    "2002 0000": "",  # not what a client sends
    "6202 0000": "",  # PUBREL with packet id 0
}


def test_what_breaks_the_protocol_is_kept_for_the_quarantine(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        for number, bad in enumerate([*BAD, ""]):
            board.connect()
            board.publish(b"%d" % number, 1)
            serve(board, lambda count=number + 1: len(board.acknowledged) == count, "acknowledged")  # type: ignore[misc]
            if bad:
                transport = board.client._transport
                assert transport is not None
                data = bytes.fromhex(bad)
                assert transport.write(data, 0, len(data)) == len(data)
                deadline = time.monotonic() + PATIENCE_S
                while board.client.poll() == 0:
                    assert time.monotonic() < deadline
                    board.dialer.wait(10)
                command.wait_for_count("connection ended: ", number + 1)
        assert end(command, board) == 0
    frames = [record.frame for record in CaptureReader(tmp_path / "log").records()]
    ours = [at for at, frame in enumerate(frames) if frame[:1] == b"\x32" and frame[-1:].isdigit()]
    assert [frames[at][-1:] for at in ours] == [b"%d" % number for number in range(len(BAD) + 1)]
    kept = [frames[at + 1 : then] for at, then in itertools.pairwise(ours)]
    assert dict(zip(BAD, kept, strict=True)) == {
        bad: [bytes.fromhex(kept)] if kept else [] for bad, kept in BAD.items()
    }


def test_what_was_acknowledged_is_in_the_log_when_the_gateway_is_killed(
    tmp_path: Path, line: PtyLine
) -> None:
    board = PtyBoard(line)
    fate = random.Random(11)
    number = 0
    for life in range(6):
        with running_gateway(tmp_path, serials=[line.path]) as command:
            board.connect()
            late = time.monotonic() + fate.uniform(0.05, 0.5)
            while time.monotonic() < late or len(board.acknowledged) < 20 * life:
                if board.publish(b"%d" % number, 1 + number % 2) > 0:
                    number += 1
                board.client.poll()
            command.process.kill()
            command.wait()
        acknowledged = set(board.acknowledged)
        assert acknowledged <= set(payloads(tmp_path))
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        serve(board, lambda: len(board.acknowledged) == number, "the rest is acknowledged")
        assert end(command, board) == 0
    assert set(payloads(tmp_path)) == {b"%d" % i for i in range(number)}
    assert not verify(tmp_path / "log").damaged


#: The log is to be larger than everything else that the gateway writes while its files cannot grow.
FILLER = bytes(64_000)


def test_a_full_disk_stops_acknowledgements_and_loses_nothing(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        epoch = board.client.session.epoch
        board.publish(FILLER, 1)
        serve(board, lambda: board.acknowledged, "the first is acknowledged")
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size + 20)
        for i in range(6):
            board.publish(b"%d" % i, i % 3)
        serve(board, lambda: "nothing is acknowledged" in command.errors, "the gateway says so")
        stats = tmp_path / "stats.json"
        # The board's pings are answered all the while.
        over = time.monotonic() + 6
        serve(board, lambda: time.monotonic() > over, "six seconds are over")
        assert board.client.session.epoch == epoch
        assert len(board.acknowledged) == 1
        assert "File too large" in json.loads(stats.read_text())["error"]
        command.limit_files(resource.RLIM_INFINITY)
        serve(board, lambda: len(board.acknowledged) == 5, "all is acknowledged")
        command.wait_for("can be written again")
        assert end(command, board) == 0
    assert payloads(tmp_path) == [FILLER, *(b"%d" % i for i in range(6))]


def test_what_a_board_sends_again_is_marked(tmp_path: Path, line: PtyLine) -> None:
    """The cable is pulled while the disk is full: nothing was acknowledged, and the session is kept."""
    board = PtyBoard(line)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        board.publish(FILLER, 1)
        serve(board, lambda: board.acknowledged, "the first is acknowledged")
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size + 20)
        for _ in range(3):
            board.publish(b"20.5", 1)

        def taken() -> int:
            stats = tmp_path / "stats.json"
            (port,) = json.loads(stats.read_text())["sources"] if stats.exists() else (None,)
            count: int = port["records"]["qos1"] if port else 0
            return count

        serve(board, lambda: taken() == 4, "the gateway has all")
        line.unplug()
        command.wait_for("the port is gone")
        line.plug()
        board.connect()
        assert board.client.session_present
        serve(board, lambda: taken() == 7, "what was not acknowledged has come again")
        command.limit_files(resource.RLIM_INFINITY)
        serve(board, lambda: len(board.acknowledged) == 4, "all is acknowledged")
        assert end(command, board) == 0
    records = [record for block in CaptureReader(tmp_path / "log").blocks() for record in block.records()]
    assert [record.mark for record in records] == [ORIGINAL] * 4 + [DUPLICATE] * 3
    assert [record.first_ns for record in records[4:]] == [record.time_ns for record in records[1:4]]


def test_a_gateway_that_must_end_with_a_full_disk_says_what_is_missing(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        board.publish(FILLER, 1)
        serve(board, lambda: board.acknowledged, "the first is acknowledged")
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size)
        board.publish(b"not", 1)
        serve(board, lambda: "nothing is acknowledged" in command.errors, "the gateway says so")
        assert end(command, board) == 1
        assert "1 frames were not written" in command.errors
    assert len(board.acknowledged) == 1
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        serve(board, lambda: len(board.acknowledged) == 2, "the next gateway acknowledges it")
        assert end(command, board) == 0
    assert payloads(tmp_path) == [FILLER, b"not"]


def test_what_is_recorded_is_acknowledged_when_the_gateway_ends(tmp_path: Path, line: PtyLine) -> None:
    board = PtyBoard(line)
    with running_gateway(tmp_path, serials=[line.path]) as command:
        board.connect()
        number = 0
        # It ends in the middle of its work.
        while len(board.acknowledged) < 100:
            if board.publish(b"%d" % number, 1) > 0:
                number += 1
            board.client.poll()
        assert board.under_way
        assert end(command, board) == 0
    assert sorted(board.acknowledged, key=int) == sorted(payloads(tmp_path), key=int)


async def test_a_board_is_heard_while_the_log_takes_nothing(tmp_path: Path, line: PtyLine) -> None:
    """The gate is closed: its pings are answered, and it may send so much and no more."""
    board = PtyBoard(line, keep_alive=1)
    async with recording(tmp_path / "log", 20_000, block_bytes=4000) as (recorder, disk):
        disk.go.clear()

        def on_the_board() -> None:
            board.connect()
            epoch = board.client.session.epoch
            for number in range(16):
                board.publish(b"%2d" % number + bytes(1000), 1)
            serve(board, lambda: not recorder.is_open, "the gate is closed")
            before = board.dialer.link.bytes_in
            over = time.monotonic() + 4
            serve(board, lambda: time.monotonic() > over, "four keep-alives are over")
            assert board.dialer.link.bytes_in > before
            assert board.client.session.epoch == epoch
            assert board.acknowledged == []
            for _ in range(400):
                board.client.publish(b"t", bytes(400), 0)
                board.client.poll()

        async with task_of(MqttBoard(recorder, SerialConfig(str(line.path))).run()):
            await asyncio.to_thread(on_the_board)
            assert recorder.records < 16 + 250
            disk.go.set()
            await asyncio.to_thread(
                serve, board, lambda: len(board.acknowledged) == 16, "all is acknowledged"
            )


def test_one_log_has_one_gateway(tmp_path: Path, line: PtyLine) -> None:
    with running_gateway(tmp_path, serials=[line.path]) as command:
        command.wait_for("open, waiting for the board")
        shown = headwater(*gateway(tmp_path, serials=[line.path]))
        assert shown.returncode == 1
        assert b"another gateway writes to" in shown.stderr
        assert b"Traceback" not in shown.stderr
        assert command.end(signal.SIGINT) == 0
