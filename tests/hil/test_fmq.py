"""FMQ on a board over its console line, to the hub of a gateway; and the prompt on the same line behind it."""

from pathlib import Path

from tests.host.command import running
from tests.host.test_gateway_hub import messages
from tools.board import Board

SECONDS = 200.0
COUNT = 30
PROGRAM = f"""
from headwater.errors import HeadwaterError
from headwater.fmq.client import Client
from headwater_board.serial import Serial
serial = Serial("usb")
client = Client(serial, b"console", clean_start=False, response_ms=30000)
got = []
done = []
answers = []
client.on_message = lambda f: got.append(f.payload_bytes())
client.on_delivered = done.append
client.on_answer = lambda number, code: answers.append(code)
n = 0
while len(done) < {COUNT} or len(got) < {COUNT}:
    try:
        client.connect()
        if not client.session_present:
            client.subscribe(b"numbers")
        while client.wait(5) == 0 and (len(done) < {COUNT} or len(got) < {COUNT}):
            if answers and n < {COUNT} and client.publish(b"numbers", b"%d" % n, 1 + n % 2) > 0:
                n += 1
    except HeadwaterError:
        pass
client.disconnect()
serial.drain(30000)
"""


def test_over_the_console_line_and_then_the_prompt(board: Board, tmp_path: Path) -> None:
    board.start(PROGRAM)
    board.close(leave=False)
    hub = ("--hub", tmp_path / "hub.db", "--hub-port", 0)
    arguments = ("gateway", "--capture", tmp_path / "log", *hub, "--fmq-serial", board.port)
    with running(*arguments, directory=tmp_path) as command:
        command.wait_for("console connected", SECONDS)
        command.wait_for("the connection ended", SECONDS)
        assert command.end() == 0
    assert [int(message.payload) for message in messages(tmp_path)] == list(range(COUNT))
    assert {message.peer for message in messages(tmp_path)} == {f"serial:{board.port}"}
    # The program has come to its end, and says what it got.
    assert board.exec("print(len(done), [int(n) for n in got])") == f"{COUNT} {list(range(COUNT))}\n"
