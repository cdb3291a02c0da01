"""``headwater pub --segment-size``: files in segments, through real servers, and together again."""

import os
import re
import socket
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.ibmmq.header import MQMDE
from headwater_host.mq.CMQC import MQRC_INCOMPLETE_MSG
from headwater_host.mq.reassembly.assembler import Assembler, Outcome
from headwater_host.mq.reassembly.outcomes import Whole
from headwater_host.mq.structures import decode
from tests.host.command import HEADWATER, environment, headwater, hub_at, running
from tests.interop.recorder import recording
from tests.interop.test_cli_pub_sub import subscribed
from tools.broker import HOST, Mosquitto, free_port

StartBroker = Callable[..., Mosquitto]
SIZE = 4096
DATA = os.urandom(10 * SIZE + 5)


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    return mosquitto()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with hub_at(tmp_path_factory.mktemp("hub"), "--port", 0) as port:
        yield port


def ok(*arguments: object, data: bytes = b"") -> None:
    done = headwater("pub", *arguments, data=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def failed(code: int, *arguments: object) -> str:
    """The line that the command says when it fails with this code."""
    done = headwater("pub", *arguments)
    assert (done.returncode, done.stdout) == (code, b""), done
    assert done.stderr.count(b"\n") == 1, done
    return done.stderr.decode()


def payloads(output: bytes) -> list[bytes]:
    """What ``sub -F %x`` has printed."""
    return [bytes.fromhex(line) for line in output.decode().split()]


def added(messages: list[bytes]) -> tuple[Assembler, list[Outcome]]:
    assembler = Assembler(sqlite3.connect(":memory:"))
    return assembler, [outcome for payload in messages for outcome in assembler.add("t", payload, 0.0)]


def whole(messages: list[bytes]) -> tuple[bytes, str, int]:
    _, (one,) = added(messages)
    assert isinstance(one, Whole), one
    return one.read(), one.format, one.ccsid


def is_incomplete(messages: list[bytes]) -> bool:
    """Whether these are the beginning of a message, and no more."""
    assembler, outcomes = added(messages)
    (problem,) = assembler.expire(1e9)
    return not outcomes and problem.reason == MQRC_INCOMPLETE_MSG


# -- there and together again ------------------------------------------------------------------------------------------


@pytest.mark.needs_mosquitto
@pytest.mark.parametrize("version, qos", [("3.1", 1), ("3.1.1", 0), ("3.1.1", 2), ("5", 1)])
def test_a_file_comes_together_again(broker: Mosquitto, version: str, qos: int, tmp_path: Path) -> None:
    name = f"seg-{version}-{qos}"
    at = ("-h", HOST, "-p", broker.port, "-V", version, "-t", name, "-q", qos)
    file = tmp_path / "file"
    # A file that ends with a segment has no other behind it. Of a pipe nobody knows: there the last one is empty.
    lengths = {len(DATA): 11, 10 * SIZE: 10, SIZE: 1, 0: 1}
    pipes = {len(DATA): 11, 10 * SIZE: 11, 0: 1}
    count = sum(lengths.values()) + sum(pipes.values())
    with running("sub", *at, "-i", name, "-C", count, "-F", "%x\\n", "-N", directory=tmp_path) as sub:
        subscribed(broker, name)
        for length in lengths:
            file.write_bytes(DATA[:length])
            ok(*at, "-f", file, "--segment-size", SIZE, "--format", "MQSTR")
        for length in pipes:
            ok(*at, "-s", "--segment-size", SIZE, "--format", "TEXT", "--ccsid", 819, data=DATA[:length])
        assert sub.wait() == 0
        arrived = payloads(sub.output)
    ids = set()
    for counts, described in ((lengths, ("MQSTR   ", 1208)), (pipes, ("TEXT    ", 819))):
        for length, number in counts.items():
            mine, arrived = arrived[:number], arrived[number:]
            assert whole(mine) == (DATA[:length], *described)
            (group,) = {decode(MQMDE, payload, big=True, ccsid=819)["GroupId"] for payload in mine}
            ids.add(group)
            assert all(len(payload) == 72 + SIZE for payload in mine[:-1])
    # Those that are one message only have none.
    assert bytes(24) in ids
    assert len(ids) == 5


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_over_a_hub(hub: int, qos: int, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(DATA)
    topic = f"seg/{qos}"
    at = ("-L", f"fmq://{HOST}:{hub}/{topic}")
    with running("sub", *at, "-C", 11, "-F", "%x\\n", "-N", "--tag", "log", "-d", directory=tmp_path) as sub:
        sub.wait_for(f"subscribed to '{topic}'")
        ok(*at, "-f", file, "-q", qos, "--segment-size", SIZE, "--tag", "log", "--encoding", 546)
        assert sub.wait() == 0
        arrived = payloads(sub.output)
    assert whole(arrived)[0] == DATA
    assert decode(MQMDE, arrived[0], big=True, ccsid=819)["Encoding"] == 546


def test_through_a_gateway_into_its_queue(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "gateway.toml").write_text(
        f'capture = "{tmp_path}/log"\n[hub]\nstorage = "{tmp_path}/hub.db"\nport = {port}\n'
        f'[mq]\nfile = "{tmp_path}/mq.db"\ntopics = ["logs/#"]\nqueue = "LOGS"\n'
    )
    (tmp_path / "file").write_bytes(DATA)
    with running("gateway", "--config", tmp_path / "gateway.toml", directory=tmp_path) as gateway:
        gateway.wait_for("listening on")
        at = ("-L", f"fmq://{HOST}:{port}/logs/a", "-q", 1)
        ok(*at, "-f", tmp_path / "file", "--segment-size", SIZE)
        got = headwater("mq", "get", "--store", tmp_path / "mq.db", "--queue", "LOGS", "-W", 30, "-F", "%x")
        assert gateway.end() == 0
    assert (got.returncode, got.stderr) == (0, b"")
    assert bytes.fromhex(got.stdout.decode()) == DATA


# -- how much of it is under way ---------------------------------------------------------------------------------------


class _Peer:
    """A server of MQTT 3.1.1 that does what the test says: it takes a client and its messages, one by one."""

    def __init__(self, listener: socket.socket):
        self.socket, _ = listener.accept()
        self.socket.settimeout(30)
        self._read = self.socket.makefile("rb")
        assert self.packet()[0] >> 4 == 1
        self.socket.sendall(b"\x20\x02\x00\x00")

    def packet(self) -> bytes:
        """The next packet: its first byte, and what is behind its length; empty at the end."""
        first = self._read.read(1)
        length = shift = 0
        while first:
            (digit,) = self._read.read(1)
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return first + self._read.read(length)
        return b""

    def message(self) -> tuple[bytes, bytes]:
        """The packet id and payload of the next message."""
        packet = self.packet()
        assert packet[:1] == b"\x32", packet[:10]
        (n,) = struct.unpack_from(">H", packet, 1)
        return packet[3 + n : 5 + n], packet[5 + n :]

    def acknowledge(self, packet_id: bytes) -> None:
        self.socket.sendall(b"\x40\x02" + packet_id)

    def close(self) -> None:
        self._read.close()
        self.socket.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as found:
        found.settimeout(30)
        yield found


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shrink(path: Path) -> None:
    os.truncate(path, 19 * SIZE)


def _change(path: Path) -> None:
    """Other bytes, and equally many."""
    with path.open("r+b") as file:
        file.write(b"changed")
    os.utime(path, ns=(0, 0))


@pytest.mark.parametrize("change", [_grow, _shrink, _change])
def test_a_file_that_changes_has_no_last_segment(
    listener: socket.socket, change: Callable[[Path], None], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(20 * SIZE))
    port = listener.getsockname()[1]
    arguments = ("-h", HOST, "-p", port, "-t", "a", "-q", 1, "-M", 2, "--segment-size", SIZE)
    with running("pub", *arguments, "-f", file, directory=tmp_path) as pub:
        peer = _Peer(listener)
        arrived = []
        packet_id, payload = peer.message()
        # With at most two under way, the command cannot have come to the end of the file.
        change(file)
        arrived.append(payload)
        peer.acknowledge(packet_id)
        while (packet := peer.packet())[:1] == b"\x32":
            arrived.append(packet[6:])
            peer.acknowledge(packet[4:6])
        assert pub.wait() == 1
        peer.close()
    says = f"headwater: {file} has changed while it was read; what was sent of it stays incomplete\n"
    assert pub.errors == says
    assert is_incomplete(arrived)


@pytest.mark.needs_mosquitto
def test_no_more_are_in_flight_than_wanted(broker: Mosquitto) -> None:
    with recording(broker.port) as recorder:
        at = ("-h", HOST, "-p", recorder.port, "-t", "inflight", "-q", 2, "-M", 1)
        ok(*at, "-s", "--segment-size", 16, data=bytes(50))
        packets = [packet["type"] for packet in recorder.packets("3.1.1")]
        assert packets == ["CONNECT", *["PUBLISH", "PUBREL"] * 4, "DISCONNECT"]


MOST = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.needs_mosquitto
def test_the_whole_file_is_never_in_memory(broker: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, 100 << 20)

    def most(*arguments: object) -> int:
        """Bytes of memory that the command has taken at most."""
        at = ("pub", "-h", HOST, "-p", broker.port, "-t", "large", "-q", 1, *arguments)
        # A process begins with what the one had that started it: here that is one with nothing in it.
        between = [sys.executable, "-c", MOST, *HEADWATER, *map(str, at)]
        done = subprocess.run(between, env=environment(), stdout=subprocess.PIPE, check=True)
        return int(done.stdout) << 10

    small = most("-n")
    assert most("-f", file, "--segment-size", 65536) - small < 32 << 20
    # Without it, so that the figure says something.
    assert most("-f", file) - small > 100 << 20


# -- what is refused, and what fails -----------------------------------------------------------------------------------


@pytest.mark.needs_mosquitto
def test_input_that_fails_in_the_middle(broker: Mosquitto, tmp_path: Path) -> None:
    at = ("-h", HOST, "-p", broker.port, "-t", "fails", "-q", 1)
    with socket.create_server((HOST, 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with (
        running("sub", *at, "-i", "fails", "-C", 3, "-F", "%x\\n", "-N", directory=tmp_path) as sub,
        running("pub", *at, "-s", "--segment-size", SIZE, directory=tmp_path, stdin=theirs) as pub,
    ):
        theirs.close()
        subscribed(broker, "fails")
        ours.sendall(DATA[: 4 * SIZE])
        assert sub.wait() == 0
        # A reset, in the place of an end.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ours.close()
        assert pub.wait() == 2
    says = "cannot read standard input: Connection reset by peer; what was sent of it stays incomplete"
    assert pub.errors == f"headwater: {says}\n"
    assert is_incomplete(payloads(sub.output))


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


def _directory(path: Path) -> None:
    path.mkdir()


def _nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize(
    "make, says",
    [
        (_sparse, "is too large: in segments of 4096 bytes a message has at most 1000001536 bytes"),
        (_directory, "Is a directory"),
        (_nothing, "No such file or directory"),
    ],
)
def test_files_that_are_refused_before_there_is_a_connection(
    make: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    make(tmp_path / "file")
    at = ("-h", HOST, "-p", free_port(), "-t", "a", "-f", tmp_path / "file", "--segment-size", SIZE)
    assert says in failed(2, *at)


@pytest.mark.needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_server_that_takes_less(mosquitto: StartBroker, qos: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with mosquitto(settings={"max_packet_size": 2000}) as broker:
        at = ("-h", HOST, "-p", broker.port, "-t", "a", "-q", qos, "-f", tmp_path / "file", "--segment-size")
        assert re.fullmatch(
            r"headwater: not published: the packet has \d+ bytes, and the server takes no more than 2000\n",
            failed(2, "-V", 5, *at, SIZE),
        )
        ok("-V", 5, *at, 1024)
        if qos:
            # Before 5.0 a server cannot say so: it hangs up.
            assert failed(3, "-V", "3.1.1", *at, SIZE).startswith("headwater: the connection was lost")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_connection_that_is_lost_is_told_once(qos: int, tmp_path: Path) -> None:
    """However many segments it was lost with."""
    (tmp_path / "file").write_bytes(DATA)
    with socket.create_server((HOST, 0)) as silent:
        at = ("-h", HOST, "-p", silent.getsockname()[1], "-t", "a", "-q", qos, "-M", 4)
        with running("pub", *at, "-f", tmp_path / "file", "--segment-size", SIZE, directory=tmp_path) as pub:
            peer, _ = silent.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"\x20\x02\x00\x00")
                # All four are under way, and none is acknowledged.
                left = 4 * (SIZE + 72)
                while left > 0:
                    left -= len(peer.recv(left))
            assert pub.wait() == 3
    assert pub.errors.startswith("headwater: the connection was lost")
    assert pub.errors.count("\n") == 1, pub.errors


def test_a_refusal_is_told_though_the_connection_ends_behind_it(tmp_path: Path) -> None:
    """Of eight that fail one is refused, while the command waits for more to read."""
    with socket.create_server((HOST, 0)) as server:
        at = ("-V", 5, "-h", HOST, "-p", server.getsockname()[1], "-t", "a", "-q", 1)
        with running(
            "pub", *at, "-s", "--segment-size", SIZE, directory=tmp_path, stdin=subprocess.PIPE
        ) as pub:
            source = pub.process.stdin
            assert source is not None
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"\x20\x03\x00\x00\x00")
                source.write(DATA[: 9 * SIZE])
                source.flush()
                left = 8 * (SIZE + 72 + 9)
                while left > 0:
                    left -= len(peer.recv(left))
                # PUBACK of the last one; and the other side has seen the end when it closes.
                peer.sendall(b"\x40\x03\x00\x08\x95")
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(100):
                    pass
            source.close()
            assert pub.wait() == 1
    assert pub.errors == "headwater: the server refused the message: packet too large (0x95)\n"


def test_a_hub_that_takes_less(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text("[clients]\nframe = 70000\n")
    (tmp_path / "file").write_bytes(bytes(200_000))
    with hub_at(tmp_path, "--config", tmp_path / "hub.toml", "--port", 0) as port:
        at = ("-L", f"fmq://{HOST}:{port}/a", "-q", 1, "-f", tmp_path / "file", "--segment-size")
        refusal = "headwater: the server refused the message: packet too large (0x95)\n"
        assert failed(1, *at, 80_000) == refusal
        ok(*at, 65536)
