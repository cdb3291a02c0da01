"""Boards on serial lines that speak FMQ: clients of the gateway's hub, over ptys; and real MicroPython on its UART."""

import asyncio
import errno
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.fmq.frames import Frame
from headwater_host.capture import verify
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.fmq_board import FmqBoard, Stream
from tests.host.gateway_peers import FmqPtyBoard, PtyLine, end, log_has, running_gateway, serve
from tests.host.test_gateway_hub import frames, messages, numbers_of_hub, numbers_of_log
from tools import deploy
from tools.virtual_board import VirtualBoard


def publish(board: FmqPtyBoard, number: int, qos: int) -> None:
    assert board.publish(b"%d" % number, qos, b"numbers") >= 0


def test_what_a_board_publishes_is_recorded_at_every_qos(tmp_path: Path, line: PtyLine) -> None:
    board = FmqPtyBoard(line)
    with running_gateway(tmp_path, stats=False, hub_port=0, fmq_serials=[line.path]) as command:
        board.connect()
        for number in range(30):
            publish(board, number, number % 3)
        serve(board, lambda: len(board.acknowledged) == 20 and log_has(tmp_path, 30), "all is recorded")
        board.client.disconnect()
        command.wait_for("the connection ended")
        assert end(command, board) == 0
        assert f"serial:{line.path}: board-1 connected" in command.errors
    found = messages(tmp_path)
    assert {(m.peer, m.topic, m.dup) for m in found} == {(f"serial:{line.path}", "numbers", False)}
    for qos in range(3):
        assert [int(m.payload) for m in found if m.qos == qos] == list(range(qos, 30, 3))
    assert sorted(numbers_of_hub(tmp_path)) == list(range(30))


def test_a_board_that_ends_the_stream_before_its_last_answers_has_left() -> None:
    """The hub holds the connection until the goodbye is stored; what it has written cannot be delivered any more."""

    def ended(*arguments: object) -> int:
        raise OSError(errno.ECONNRESET, "the stream has ended")

    async def main() -> FmqBoard:
        board = FmqBoard(cast(Any, None), SerialConfig("/dev/ttyX"), cast(Any, None))
        board.channel = cast(Any, SimpleNamespace(write=ended, open=lambda: None))
        board._client = cast(Any, SimpleNamespace(client=None, connection_lost=lambda error: None))
        stream = board._stream = Stream(board)
        stream.pause_reading()
        stream.write(b"an answer")
        board.move()
        assert board._stream is stream
        stream.close()
        board.move()
        assert board._stream is None
        return board

    board = asyncio.run(main())
    assert (board.state, board.last_error) == ("open", None)


def test_boards_hear_each_other_through_the_hub(tmp_path: Path, line: PtyLine) -> None:
    second = PtyLine(tmp_path / "ttySECOND")
    one, two = FmqPtyBoard(line, b"one"), FmqPtyBoard(second, b"two")
    heard: list[tuple[str, bytes]] = []
    granted: list[int] = []

    def note(frame: Frame) -> None:
        heard.append((frame.topic_text(), frame.payload_bytes()))

    two.client.on_message = note
    two.client.on_answer = lambda number, code: granted.append(code)
    large = random.Random(3).randbytes(3000)
    try:
        with running_gateway(
            tmp_path, stats=False, hub_port=0, fmq_serials=[line.path, second.path]
        ) as command:
            two.connect()
            two.client.subscribe(b"orders/#")
            serve(two, lambda: granted == [0], "the subscription is granted")
            one.connect()
            for number in range(5):
                assert one.publish(b"%d" % number, 1, b"orders/x") > 0
            serve(one, lambda: len(one.acknowledged) == 5, "all is acknowledged")
            serve(two, lambda: len(heard) == 5, "all has come")
            assert two.publish(large, 1, b"answers") > 0
            serve(two, lambda: two.acknowledged, "the answer is acknowledged")
            assert end(command, one, two) == 0
    finally:
        second.unplug()
    assert heard == [("orders/x", b"%d" % number) for number in range(5)]
    assert [m.payload for m in messages(tmp_path) if m.peer == f"serial:{second.path}"] == [large]


def test_over_lines_that_are_pulled_and_streams_that_break(tmp_path: Path, line: PtyLine) -> None:
    board = FmqPtyBoard(line)
    fate = random.Random(7)
    with running_gateway(tmp_path, stats=False, hub_port=0, fmq_serials=[line.path]) as command:
        board.connect()
        number = 0
        for turn in range(12):
            for _ in range(5):
                publish(board, number, 1 + number % 2)
                number += 1
            for _ in range(fate.randrange(4)):
                board.client.poll()
                board.dialer.wait(fate.randrange(8))
            if turn % 4 == 3:
                line.unplug()
                command.wait_for_count("the port is gone", turn // 4 + 1)
                line.plug()
            else:
                board.client.close()
            board.connect()
            assert board.client.session_present
        serve(board, lambda: len(board.acknowledged) == number, "all is acknowledged")
        assert end(command, board) == 0
    # The hub has each once; the log has what was sent again as often as that came.
    assert numbers_of_hub(tmp_path) == list(range(number))
    assert numbers_of_log(tmp_path) == set(range(number))


def test_what_breaks_the_protocol_is_kept_for_the_quarantine(tmp_path: Path, line: PtyLine) -> None:
    board = FmqPtyBoard(line)
    with running_gateway(tmp_path, stats=False, hub_port=0, fmq_serials=[line.path]) as command:
        board.connect()
        transport = board.client._transport
        assert transport is not None
        assert transport.write(b"\x40junk", 0, 5) == 5
        deadline = time.monotonic() + 60
        while board.client.poll() == 0:
            assert time.monotonic() < deadline
            board.dialer.wait(10)
        board.connect()
        publish(board, 1, 1)
        serve(board, lambda: board.acknowledged, "it is acknowledged")
        assert end(command, board) == 0
    assert frames(tmp_path)[0] == b"\x40junk"
    assert len(frames(tmp_path)) == 2


def test_garbage_on_the_line_costs_nothing_but_time(tmp_path: Path, line: PtyLine) -> None:
    board = FmqPtyBoard(line)
    noise = random.Random(9)
    with running_gateway(tmp_path, stats=False, hub_port=0, fmq_serials=[line.path]) as command:
        os.write(line.fd, noise.randbytes(3000))
        board.connect()
        for number in range(40):
            publish(board, number, 1 + number % 2)
            board.client.poll()
            if number % 4 == 0:
                os.write(line.fd, noise.randbytes(noise.randrange(1, 60)) + b"\r\n>>> MPY: soft reboot\r\n")
        serve(board, lambda: len(board.acknowledged) == 40, "all is acknowledged")
        assert end(command, board) == 0
    assert numbers_of_hub(tmp_path) == list(range(40))


def test_what_was_acknowledged_is_in_log_and_hub_when_the_gateway_is_killed(
    tmp_path: Path, line: PtyLine
) -> None:
    board = FmqPtyBoard(line)
    fate = random.Random(11)
    number = 0
    for _ in range(4):
        with running_gateway(tmp_path, stats=False, hub_port=0, fmq_serials=[line.path]) as command:
            board.connect()
            enough = len(board.acknowledged) + fate.randrange(5, 40)
            while len(board.acknowledged) < enough:
                if board.publish(b"%d" % number, 1 + number % 2, b"numbers") > 0:
                    number += 1
                if board.client.poll():
                    board.connect()
            command.process.kill()
            command.wait()
        acknowledged = {int(payload) for payload in board.acknowledged}
        assert acknowledged <= numbers_of_log(tmp_path)
        assert acknowledged <= set(numbers_of_hub(tmp_path))
    with running_gateway(tmp_path, stats=False, hub_port=0, fmq_serials=[line.path]) as command:
        board.connect()
        serve(board, lambda: len(board.acknowledged) == number, "the rest is acknowledged")
        assert end(command, board) == 0
    assert numbers_of_hub(tmp_path) == list(range(number))
    assert numbers_of_log(tmp_path) == set(range(number))
    assert not verify(tmp_path / "log").damaged


PROGRAM = """
import time
from headwater.errors import HeadwaterError
from headwater.fmq.client import Client
from headwater_board.serial import Serial
client = Client(Serial(0), b"uart-board", clean_start=False)
delivered = []
client.on_delivered = delivered.append
number = 0
while len(delivered) < 100:
    try:
        client.connect()
        while client.wait(2) == 0 and len(delivered) < 100:
            if number < 100 and client.publish(b"numbers", b"%d" % number, 1 + number % 2) >= 0:
                number += 1
                if number % 25 == 0:
                    print("halt", number)
    except (OSError, HeadwaterError) as error:
        print("again:", error)
        time.sleep(0.1)
client.disconnect()
print("all delivered")
"""


@pytest.mark.needs_micropython
def test_a_real_micropython_on_the_line_of_a_gateway_that_is_killed(tmp_path: Path) -> None:
    with VirtualBoard(main=PROGRAM, files=deploy.package_files("mpy"), name="uart", uarts=1) as board:
        for number in (25, 50, 75):
            with running_gateway(
                tmp_path, stats=False, hub_port=0, fmq_serials=[board.uart_ports[0]]
            ) as command:
                board.wait_for(f"halt {number}", 200)
                command.process.kill()
        with running_gateway(tmp_path, stats=False, hub_port=0, fmq_serials=[board.uart_ports[0]]) as command:
            board.wait_for("all delivered", 200)
            command.wait_for("uart-board connected")
            assert command.end() == 0
    assert sorted(numbers_of_hub(tmp_path)) == list(range(100))
    assert numbers_of_log(tmp_path) == set(range(100))
