"""Cases for ``headwater_board.ota`` on MicroPython: a receiver on littlefs in memory, with images made here.

``test_ota.py`` calls the functions by name; each asserts, and prints what it has counted.
"""

import gc
import json
import os
import sys
from binascii import hexlify
from hashlib import sha256

import micropython
import vfs
from line import Rng

from headwater.reconnect import GIVEN_UP, ONLINE, PASSING, PAUSE
from headwater.wire import Message
from headwater_board import loader, ota
from headwater_board import ota_firmware as ota_firmware  # Its folder is not there once the flash is mounted.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KEY = bytes(range(32))
TOPIC = b"boards/shed/update"
BLOCK = 4096


@micropython.viper
def _copy(target: ptr8, at: int, source: ptr8, where: int, n: int):  # type: ignore  # noqa: F821 - viper's types
    """Copy bytes. The collector closes files under a locked heap, so nothing here may allocate."""
    for i in range(n):
        target[at + i] = source[where + i]


class RamFlash:
    """Flash in memory, for littlefs."""

    def __init__(self, blocks: int) -> None:
        self.data = bytearray(blocks * BLOCK)
        self.writes = 0

    def readblocks(self, block: int, buf: "Any", offset: int = 0) -> None:
        at = block * BLOCK + offset
        _copy(buf, 0, self.data, at, len(buf))

    def writeblocks(self, block: int, buf: "Any", offset: int = 0) -> None:
        self.writes += 1
        at = block * BLOCK + offset
        _copy(self.data, at, buf, 0, len(buf))

    def ioctl(self, op: int, arg: int) -> int:
        if op == 6:
            self.writes += 1
        return len(self.data) // BLOCK if op == 4 else BLOCK if op == 5 else 0


class ResetError(Exception):
    """The board has been reset."""


class Machine:
    """``machine`` of ESP32. ``cause`` is that of the start."""

    PWRON_RESET, HARD_RESET, WDT_RESET, DEEPSLEEP_RESET, SOFT_RESET = 1, 2, 3, 4, 5
    cause = HARD_RESET

    def reset_cause(self) -> int:
        return self.cause

    def reset(self) -> None:
        raise ResetError


machine = Machine()
sys.modules["machine"] = machine  # type: ignore[assignment]


class Reports:
    """Where the receiver publishes: a connection that takes everything. ``last`` is the last report."""

    def __init__(self) -> None:
        self.state = ONLINE
        self.connections = 1
        self.client = self.session = self.rx = self.dialer = self
        self.capacity = 448
        self.sent: list[bytes] = []
        self.status = self.return_code = 0
        self.now = 0

    def publish(self, topic: bytes, payload: bytes, qos: int) -> int:
        assert topic == TOPIC + b"/state"
        del self.sent[:-20]
        self.sent.append(bytes(payload))
        return 1

    def waiting(self) -> int:
        return 0

    def ticks_ms(self) -> int:
        return self.now

    @property
    def last(self) -> "dict[str, Any]":
        return json.loads(self.sent[-1])  # type: ignore[no-any-return]


class Piece(Message):
    """A message on the update topic."""

    def __init__(self, size: int) -> None:
        self.buf = bytearray(size)
        self.head = 0x32
        self.buf[: len(TOPIC)] = TOPIC
        self.topic_at = 0
        self.topic_end = self.payload_at = len(TOPIC)
        self.end = 0

    def fill(self, payload: bytes) -> "Piece":
        self.end = self.payload_at + len(payload)
        self.buf[self.payload_at : self.end] = payload
        return self


MESSAGE = Piece(20000)


class Bench:
    """A board without updates: its flash, receiver and reports."""

    def __init__(self, blocks: int = 64) -> None:
        self.flash = RamFlash(blocks)
        vfs.VfsLfs2.mkfs(self.flash, progsize=256)
        self.mount()
        self.begin()

    def mount(self) -> None:
        vfs.umount("/")
        vfs.mount(vfs.VfsLfs2(self.flash, progsize=256), "/")

    def begin(self, **options: "Any") -> None:
        """Start the receiver, as after a reset."""
        loader.started = True
        self.reports = Reports()
        self.receiver = ota.Receiver(self.reports, TOPIC, KEY, "shed", **options)

    def give(self, payload: bytes) -> None:
        assert self.receiver.take(MESSAGE.fill(payload))

    def piece(self, image: bytes, at: int, n: int, flags: int = 1) -> None:
        self.give(image[6:14] + bytes([flags, at >> 16, at >> 8 & 255, at & 255]) + image[at : at + n])

    def polls(self, n: int = 40) -> int:
        for _ in range(n):
            self.receiver.poll()
        return self.receiver.state

    def offer(self, image: bytes) -> "dict[str, Any]":
        """Send the manifest: the last report about it."""
        end = 38 + (image[4] << 8 | image[5])
        self.piece(image, 0, end)
        self.polls(2)
        about = [text for text in self.reports.sent if hexlify(image[6:14]) in text]
        return json.loads((about or self.reports.sent)[-1])  # type: ignore[no-any-return]

    def send(self, image: bytes, n: int) -> int:
        """Send all, in pieces of ``n`` bytes, in order."""
        self.offer(image)
        while self.receiver.state == ota.RECEIVING:
            self.piece(image, self.receiver.at, n)
        return self.polls()


def sign(manifest: "Any", body: bytes = b"", key: bytes = KEY) -> bytes:
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    head = b"HWU1" + bytes([len(text) >> 8, len(text) & 255])
    return head + ota.hmac_sha256(key, head + text) + text + body


def entry(name: str, data: bytes) -> "list[Any]":
    return [name, len(data), hexlify(sha256(data).digest()).decode()]


FILES = {
    "app.py": b"print('new')\n",
    "lib/a/b.py": bytes(range(256)) * 20,
    "empty": b"",
    "z.bin": b"z" * 4097,
}


def manifest(files: "dict[str, bytes]" = FILES, **changed: "Any") -> "dict[str, Any]":
    made: dict[str, Any] = {"format": 1, "target": "shed", "version": "1.2", "serial": 5}
    made["files"] = [entry(name, data) for name, data in files.items()]
    made.update(changed)
    return made


def rows(*entries: "Any") -> bytes:
    """Return an image that has these entries as its list of files."""
    made = manifest()
    made["files"] = entries
    return sign(made)


def image(files: "dict[str, bytes]" = FILES, **changed: "Any") -> bytes:
    return sign(manifest(files, **changed), b"".join(files.values()))


def written(slot: str, files: "dict[str, bytes]" = FILES) -> bool:
    for name, data in files.items():
        with open(slot + "/" + name, "rb") as file:
            if file.read() != data:
                return False
    return True


def nothing_written(bench: Bench, act: "Callable[[], object]") -> None:
    before = bench.flash.writes
    act()
    assert bench.flash.writes == before, "the flash was written to"


# -- the cases ---------------------------------------------------------------------------------------------------------


def hmac_vectors() -> None:
    """RFC 4231: cases 1, 2, 3 and 6."""
    for key, data, begin in (
        (b"\x0b" * 20, b"Hi There", b"b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (
            b"Jefe",
            b"what do ya want for nothing?",
            b"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        ),
        (b"\xaa" * 20, b"\xdd" * 50, b"773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
        (
            b"\xaa" * 131,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            b"60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
    ):
        assert hexlify(ota.hmac_sha256(key, data)) == begin
    assert ota.same_digest(b"ab", b"xab", 1)
    assert not ota.same_digest(b"ab", b"xac", 1)
    assert not ota.same_digest(b"ab", b"xbb", 1)


def short_keys() -> None:
    """An empty file of the key, after a power cut for instance, accepts no signature."""
    bench = Bench()
    for name, content in (("/hex", hexlify(KEY) + b"\r\n"), ("/raw", KEY), ("/empty", b"")):
        with open(name, "wb") as file:
            file.write(content)
        assert ota.read_key(name) == (KEY if content else b"")
    for key in (ota.read_key("/empty"), b"secret"):
        said = ""
        try:
            ota.Receiver(bench.reports, TOPIC, key, "shed")
        except ValueError as error:
            said = str(error)
        assert "at least 16" in said


def pieces_of_any_size() -> None:
    made = image()
    for n in (1, 7, 64, 370, 4096):
        bench = Bench()
        assert bench.send(made, n) == ota.READY, n
        assert written("/a")
        state = loader.read()
        assert (state["slot"], state["version"], state["left"]) == ("a", "1.2", 3)
        assert bench.reports.last["state"] == "ready"


def lost_reordered_duplicated() -> None:
    """Pieces from anywhere, among them those that the receiver waits for; a reset at times."""
    rng = Rng(4)
    made = image()
    count = 0
    for _ in range(4):
        bench = Bench()
        while bench.receiver.state != ota.READY:
            count += 1
            near = rng.below(3)
            at = bench.receiver.at - rng.below(600) if near else rng.below(len(made))
            if not bench.receiver.state:
                at = rng.below(2) * rng.below(200)
            bench.piece(made, max(0, at), rng.below(700), rng.below(256))
            if rng.below(4) == 0:
                bench.polls(1)
            if rng.below(40) == 0 and bench.receiver.state != ota.READY:
                bench.mount()
                bench.begin()
        assert written("/a")
    print(count, "pieces")


def damaged_in_transit() -> None:
    """A damaged byte of a file: it is received again; three times: the image is given up."""
    made = image()
    body = 38 + (made[4] << 8 | made[5])
    damaged = bytearray(made)
    damaged[body + 3000] ^= 1
    damaged = bytes(damaged)
    bench = Bench()
    bench.offer(made)
    bench.piece(damaged, body, len(made))
    assert bench.polls() == ota.RECEIVING
    assert body <= bench.receiver.at <= body + 3000
    bench.piece(made, bench.receiver.at, len(made))
    assert bench.polls() == ota.READY
    assert written("/a")
    bench = Bench()
    bench.offer(made)
    for _ in range(3):
        assert bench.receiver.state == ota.RECEIVING
        bench.piece(damaged, bench.receiver.at, len(made))
        bench.polls()
    assert bench.receiver.state == ota.IDLE
    assert bench.reports.last["state"] == "failed"
    assert "damaged" in bench.reports.last["why"]
    assert loader.read()["slot"] == ""


def every_bit_of_the_head() -> None:
    """A flipped bit, and each truncation, of all that is signed: nothing is written."""
    made = image()
    end = 38 + (made[4] << 8 | made[5])
    bench = Bench()
    count = 0
    before = bench.flash.writes
    for i in range(end):
        for bit in (0, 7):
            wrong = bytearray(made[:end])
            wrong[i] ^= 1 << bit
            bench.offer(bytes(wrong))
            assert bench.receiver.state == ota.IDLE, (i, bit)
            count += 1
    for n in range(end):
        bench.begin()
        bench.piece(made[:n], 0, n) if n >= 14 else bench.give(made[:n])
        assert bench.polls(2) == ota.IDLE
        count += 1
    assert bench.flash.writes == before
    assert "a" not in os.listdir("/")
    print(count, "heads")


def garbage() -> None:
    """Random messages, some with the id of an image under way."""
    rng = Rng(7)
    made = image()
    for begun in (False, True):
        bench = Bench()
        if begun:
            bench.offer(made)
        before = bench.flash.writes
        for _ in range(3000):
            n = rng.below(60)
            payload = bytes([rng.below(256) for _ in range(n)])
            if rng.below(2) and begun:
                # Far behind what is there: it is not stored.
                payload = made[6:14] + bytes([rng.below(256), 255]) + payload
            elif rng.below(2):
                payload = payload[:8] + bytes([1, 0, 0, 0]) + b"HWU1" + payload[8:]
            bench.give(payload)
            if rng.below(8) == 0:
                bench.receiver.poll()
                bench.reports.sent.clear()
        assert bench.flash.writes == before
        if begun:
            bench.piece(made, bench.receiver.at, len(made))
            assert bench.polls() == ota.READY


def _refused(bench: Bench, made: bytes, why: str) -> None:
    before = bench.flash.writes
    report = bench.offer(made)
    assert report["state"] == "refused", report
    assert why in report["why"], (why, report)
    assert bench.flash.writes == before, "the flash was written to"


def refused_images() -> None:
    bench = Bench()
    _refused(bench, image(target="barn"), "for the board barn; this is shed")
    _refused(bench, sign(manifest(), key=b"another"), "signature")
    _refused(bench, image(version="1.x"), "format")
    _refused(bench, sign(b"[1, 2"), "format")
    _refused(bench, sign(b"[" * 2000), "format")
    _refused(bench, sign(b"\xff\xfe"), "format")
    _refused(bench, image({}), "format")
    for name in (
        "/boot.py", "../x", "a/../../x", "a//b", "", "./a", "a/", "a\\b", "a\nb", "x" * 97, "update.hwu", "firmware.at",
    ):  # fmt: skip
        _refused(bench, image({name: b"x"}), "format")
    _refused(bench, image({"a": b"1", "a/b": b"2"}), "format")
    _refused(bench, rows(entry("a", b""), entry("a", b"")), "format")
    for row in (
        ["a", -1, "0" * 64],
        ["a", 1 << 25, "0" * 64],
        ["a", "1", "0" * 64],
        ["a", 1, "00"],
        ["a", 1],
        "abc",
        7,
    ):
        _refused(bench, rows(row), "format")
    _refused(bench, rows(["a", 240000, "0" * 64]), "of flash")
    _refused(bench, image(firmware=[1000, "0" * 64]), "no OTA partition")
    loader.started = False
    _refused(bench, image(), "main.py")
    loader.started = True
    bench.receiver.manifest_size = 100
    _refused(bench, image(), "at most 100")


def start() -> "dict[str, Any]":
    """Do what the loader does at a start, but for the program."""
    state = loader._begin()
    loader.on_trial = "left" in state
    return state


def _install(bench: Bench, made: bytes) -> None:
    assert bench.send(made, 400) == ota.READY, bench.reports.last
    start()
    bench.begin()
    bench.receiver._connections = 0
    assert bench.polls(1) == ota.IDLE
    assert bench.reports.last["state"] == "running"


def replays_and_downgrades() -> None:
    bench = Bench()
    first = image(serial=10, version="1.9")
    _install(bench, first)
    assert bench.offer(first)["state"] == "running", (
        "what runs is not refused, so that a repeated command ends well"
    )
    second = image(serial=20, version="1.10")
    _install(bench, second)
    assert loader.read()["slot"] == "b"
    _refused(bench, first, "replayed")
    _refused(bench, image(serial=20, version="1.11"), "replayed")
    _refused(bench, image(serial=21, version="1.9"), "downgrade")
    back = image(serial=22, version="1.9", downgrade=True)
    _install(bench, back)
    _install(bench, image(serial=23, version="1.10"))
    _refused(bench, back, "replayed")
    # A newer image takes the place of one that is being received, an older one does not.
    newer = image({"app.py": b"x" * 3000}, serial=31, version="3")
    bench.offer(newer)
    bench.piece(newer, bench.receiver.at, 1000)
    at = bench.receiver.at
    assert at > 1000
    _refused(bench, image(serial=30, version="3"), "replayed")
    assert (bench.receiver.state, bench.receiver.at) == (ota.RECEIVING, at)
    # The same files under a new signature: they are kept.
    again = image({"app.py": b"x" * 3000}, serial=32, version="3")
    report = bench.offer(again)
    assert report.get("next") == at, (report, at)
    other = image(serial=33, version="4")
    bench.send(other, 500)
    assert bench.receiver.state == ota.READY
    assert written("/" + loader.read()["slot"])
    _refused(bench, image(serial=34, version="5"), "waits for the restart")


def on_trial() -> None:
    """While a version is on trial nothing else is installed; a version that fails is reported."""
    bench = Bench()
    _install(bench, image(serial=1))
    made = image(serial=2, version="2")
    assert bench.send(made, 400) == ota.READY
    start()
    bench.begin(confirm=False)
    bench.receiver._connections = 0
    assert bench.polls(1) == ota.IDLE
    assert bench.reports.last["trial"]
    _refused(bench, image(serial=3, version="3"), "on trial")
    for _ in range(3):
        state = start()
    assert (state["slot"], state["version"], state["serial"]) == ("a", "1.2", 2)
    bench.begin()
    bench.receiver._connections = 0
    bench.polls(1)
    failed = bench.reports.last["failed"]
    assert failed["version"] == "2"
    assert bench.offer(made)["failed"] == failed, "it is not tried again"
    _refused(bench, image(serial=2, version="3"), "replayed")
    _install(bench, image(serial=3, version="3"))
    assert "failed" not in loader.read()
    # The program itself confirms a version.
    assert bench.send(image(serial=4, version="4"), 400) == ota.READY
    start()
    bench.begin(confirm=False)
    bench.receiver._connections = 0
    bench.polls(1)
    assert bench.reports.last["trial"]
    loader.confirm()
    bench.polls(1)
    assert not bench.reports.last["trial"]
    assert bench.reports.last["version"] == "4"


def life(bench: Bench, cause: int, polls_ms: int = 0, end: "str | None" = None) -> "dict[str, Any]":
    """Start the board without a broker, after a reset for ``cause``; the program polls for a time, and raises ``end``.

    Return the state of the version that runs.
    """
    machine.cause = cause
    state = start()
    bench.begin()
    bench.reports.state = PAUSE
    while bench.reports.now < polls_ms:
        bench.reports.now += 1000
        bench.polls(1)
    if end is not None:
        try:
            loader._fail(end)
        except ResetError:
            pass
    return state


def no_broker() -> None:
    """A broker that is away does not use up the starts of a version; crashes do, and so does a version without end."""
    awake = (machine.HARD_RESET, machine.DEEPSLEEP_RESET, machine.PWRON_RESET)
    bench = Bench()
    for ends in (awake, (machine.WDT_RESET, machine.PWRON_RESET)):
        if ends is not awake:
            # RP2 has two causes.
            del Machine.HARD_RESET, Machine.DEEPSLEEP_RESET
        made = image(serial=9 - len(ends), version="%d" % (9 - len(ends)))
        assert bench.send(made, 400) == ota.READY, bench.reports.last
        for i in range(100):
            assert life(bench, ends[i % len(ends)], 20000)["left"] == 3, i
        # The cause is that of the end of the start before. A watchdog counts as a crash where it can be told apart.
        wdt = machine.WDT_RESET
        if ends is awake:
            assert life(bench, wdt, 20000)["left"] == 2
            assert life(bench, wdt)["left"] == 1
            assert "hung" in life(bench, wdt)["failed"]["why"]
        else:
            assert life(bench, wdt, 1000)["left"] == 3
            assert life(bench, wdt, 20000, "ValueError: no sensor")["left"] == 2
            assert life(bench, wdt, 20000, "ValueError: no sensor")["left"] == 1
            failed = life(bench, wdt)["failed"]
            assert "no sensor" in failed["why"]
            assert failed["id"] == hexlify(made[6:14]).decode()
        bench.begin()
        bench.polls(1)
    Machine.HARD_RESET, Machine.DEEPSLEEP_RESET = 2, 4
    # The limit.
    bench = Bench()
    bench.begin(offline_starts=5)
    assert bench.send(image(serial=1), 400) == ota.READY
    for _ in range(5):
        assert life(bench, machine.HARD_RESET, 20000)["version"] == "1.2"
    assert "not connected in any" in life(bench, machine.HARD_RESET)["failed"]["why"]


def refused_by_the_broker() -> None:
    """A broker that refuses the new version's credentials is there: these starts are failed ones."""
    assert ota._PASSING == PASSING
    for state, status, code, counts in (
        (PAUSE, -60, 5, True),
        (PAUSE, -60, 3, False),
        (PAUSE, -58, 0, False),
        (GIVEN_UP, -60, 5, True),
        (ONLINE, 0, 0, True),
    ):
        bench = Bench()
        assert bench.send(image(serial=1), 400) == ota.READY
        machine.cause = machine.HARD_RESET
        for left in (3, 2):
            assert start()["left"] == (left if counts else 3), state
            bench.begin(confirm=False)
            # First the broker is away, which must not count once it is back.
            for bench.reports.state, bench.reports.status, bench.reports.return_code in (
                (PAUSE, -58, 0),
                (state, status, code),
            ):
                bench.reports.now += 5000
                bench.polls(1)


def trial_timer() -> None:
    """The end of a start's time counts as offline only if the program polls without a connection."""
    bench = Bench()
    assert bench.send(image(serial=1), 400) == ota.READY
    for polls_ms, left in ((20000, 3), (0, 3), (20000, 2), (0, 2)):
        assert life(bench, machine.HARD_RESET, polls_ms)["left"] == left
        try:
            loader._fail("not connected within 600 s", False)
        except ResetError:
            pass
    assert loader.read()["why"] == "not connected within 600 s"


def tried_again() -> None:
    """An image that was rolled back is installed again only on request; a power cut in between loses nothing."""
    bench = Bench()
    _install(bench, image(serial=4, version="1"))
    made = image(serial=5)
    for n in range(3):
        if n:
            body = 38 + (made[4] << 8 | made[5])
            assert bench.offer(made)["failed"]["version"] == "1.2"
            bench.piece(made, 0, body, 2 | 1)
            bench.polls(2)
            assert bench.receiver.state == ota.RECEIVING
            if n == 2:
                bench.mount()
                bench.begin()
        assert bench.send(made, 400) == ota.READY, bench.reports.last
        for _ in range(3):
            assert life(bench, machine.HARD_RESET)["version"] == "1.2"
        assert life(bench, machine.HARD_RESET)["failed"]["version"] == "1.2"
        bench.reports.state = ONLINE
        bench.polls(1)
    assert "failed" in bench.reports.last
    # It opens no way for another one, older than that.
    other = image(serial=4, version="3")
    bench.piece(other, 0, 38 + (other[4] << 8 | other[5]), 3)
    bench.polls(2)
    assert "replayed" in bench.reports.last["why"]
    # A newer one that is under way is not given up for it.
    newer = image({"x": b"x" * 5000}, serial=6, version="4")
    bench.offer(newer)
    bench.piece(made, 0, 38 + (made[4] << 8 | made[5]), 3)
    bench.polls(2)
    assert any(b"replayed" in text for text in bench.reports.sent[-2:])
    assert bench.send(newer, 400) == ota.READY


def resume_without_loader() -> None:
    """A program that the loader has not started does not continue an update: no start would run it."""
    bench = Bench()
    made = image()
    bench.offer(made)
    bench.piece(made, bench.receiver.at, 2000)
    at = bench.receiver.at
    loader.started = False
    bench.reports = Reports()
    bench.receiver = ota.Receiver(bench.reports, TOPIC, KEY, "shed")
    assert bench.receiver.state == ota.IDLE
    bench.piece(made, at, len(made))
    assert bench.polls() == ota.IDLE
    assert loader.read()["slot"] == ""
    assert "main.py" in bench.offer(made)["why"]
    bench.begin()
    assert bench.receiver.state == ota.RECEIVING


def one_start_with_firmware() -> None:
    """Firmware on the stand-in of ESP32's partitions: ``starts`` are those of the new firmware."""
    from io import StringIO

    from standins import esp32

    sys.modules["esp32"] = esp32
    firmware = b"\xe9" + bytes(5000)

    class Partitions:
        """Flash of the partitions, which needs no erasing here."""

        def __init__(self) -> None:
            self.bytes: dict[int, bytes] = {}

        def read(self, at: int, buf: "Any") -> None:
            for i in range(len(buf)):
                part = self.bytes.get((at + i) // 256)
                buf[i] = part[(at + i) % 256] if part else 255

        def erase(self, at: int, size: int) -> None:
            pass

        def write(self, at: int, buf: bytes) -> None:
            for i in range(0, len(buf), 256):
                self.bytes[(at + i) // 256] = bytes(buf[i : i + 256])

    for starts in (1, 3):
        for ends in ("works", "hangs", "cut", "offline", "does not start"):
            bench = Bench()
            flash, data = Partitions(), StringIO()
            esp32.install(flash, data, True, True)
            bench.begin(starts=starts)
            made = sign(
                manifest(firmware=[len(firmware), hexlify(sha256(firmware).digest()).decode()]),
                b"".join(FILES.values()) + firmware,
            )
            assert bench.send(made, 4000) == ota.READY, bench.reports.last
            ran = resets = 0
            machine.cause = machine.HARD_RESET
            while True:
                esp32.install(flash, data, True, True)
                new = esp32.Partition(esp32.Partition.RUNNING).info()[4] == "ota_1"
                resets += 1
                if new and ends == "does not start":
                    machine.cause = machine.WDT_RESET
                    continue
                try:
                    state = start()
                except ResetError:
                    machine.cause = machine.HARD_RESET
                    continue
                if state["slot"] == "" or ran == 20:
                    break
                assert new
                ran += 1
                bench.begin()
                bench.reports.state = PAUSE
                machine.cause = machine.WDT_RESET
                if ends == "works":
                    bench.reports.state = ONLINE
                    bench.polls(1)
                    machine.cause = machine.PWRON_RESET
                elif ends == "cut":
                    machine.cause = machine.PWRON_RESET
                elif ends == "offline":
                    bench.reports.now += 5000
                    bench.polls(1)
                    machine.cause = machine.HARD_RESET
            expected = {"hangs": starts, "does not start": 0}.get(ends, 20)
            assert ran == expected, (starts, ends, ran)
            if expected < 20:
                assert not new, "files of the previous version in the new firmware"
                why = state["failed"]["why"]
                assert ("did not start" if not ran else "hung") in why, why
                assert resets <= 3 + 2 * starts


def connected_before() -> None:
    """A receiver that is made while the program is connected confirms the version as well."""
    bench = Bench()
    assert bench.send(image(serial=1), 400) == ota.READY
    start()
    bench.begin()
    bench.polls(1)
    assert "left" not in loader.read()


def abandoned_manifest() -> None:
    """A manifest that does not go on does not hide the progress of the image that does."""
    bench = Bench()
    bench.offer(image(serial=1))
    made = image(serial=2)
    bench.piece(made, 0, 100)
    bench.polls(2)
    assert bench.offer(image(serial=1))["state"] == "receiving"
    bench.reports.sent.clear()
    bench.piece(image(serial=1), 0, 38)
    bench.polls(2)
    assert any(hexlify(image(serial=1)[6:14]) in text for text in bench.reports.sent)


def confirmed_too_early() -> None:
    """The old program calls ``confirm`` before the restart into the new version: that stays on trial."""
    bench = Bench()
    loader.on_trial = False
    assert bench.send(image(serial=1), 400) == ota.READY
    loader.confirm()
    assert loader.read()["left"] == 3


def odd_manifests() -> None:
    """Signed manifests with values changed at random: accepted or refused, never an exception."""
    rng = Rng(9)
    odd = (
        None,
        True,
        -1,
        0,
        1 << 40,
        1.5,
        "",
        "a/b",
        "..",
        [],
        [1],
        {},
        {"a": 1},
        "0" * 64,
        [["a", 1, "0" * 64]],
    )
    bench = Bench()
    accepted = 0
    for n in range(500):
        made = manifest()
        made["serial"] = 10 + n
        files = made["files"]
        for _ in range(1 + rng.below(2)):
            key = list(made)[rng.below(len(made))]
            value = odd[rng.below(len(odd))]
            if key == "files" and made[key] is files and rng.below(4):
                files[rng.below(4)][rng.below(3)] = value
            elif rng.below(8) == 0:
                del made[key]
            else:
                made[key] = value
        bench.begin()
        accepted += bench.offer(sign(made))["state"] == "receiving"
    print(accepted, "accepted")
    for name in os.listdir("/"):
        assert name in ("a", "b"), name


def flash_that_cannot_be_written() -> None:
    """Without a count of starts the version on trial is not started; the previous version does not confirm it."""
    bench = Bench()
    _install(bench, image(serial=1))
    assert bench.send(image(serial=2, version="2"), 400) == ota.READY
    vfs.umount("/")
    vfs.mount(vfs.VfsLfs2(bench.flash, progsize=256), "/", readonly=True)
    before = bench.flash.writes
    state = start()
    assert (state["slot"], state["version"]) == ("a", "1.2")
    assert "cannot be counted" in state["failed"]["why"]
    bench.begin()
    bench.receiver._connections = 0
    bench.polls(3)
    assert bench.flash.writes == before
    assert len(bench.reports.sent) == 1
    # Once it can be written, the new version gets its starts.
    bench.mount()
    assert start()["version"] == "2"
    bench.begin()
    bench.receiver._connections = 0
    bench.polls(1)
    assert "left" not in loader.read()
    assert bench.reports.last["version"] == "2"


def full_flash() -> None:
    """The free flash shrinks while an image is received: it is given up, and the board starts in the old version."""
    files = {"big": bytes(100000)}
    made = image(files)
    bench = Bench()
    bench.offer(made)
    with open("/junk", "wb") as junk:
        try:
            while True:
                junk.write(bytes(4096))
                junk.flush()
        except OSError:
            pass
        bench.piece(made, bench.receiver.at, 4000)
        while bench.receiver.state == ota.RECEIVING:
            bench.piece(made, bench.receiver.at, 4000)
            bench.polls(1)
        assert bench.polls(2) == ota.IDLE
        assert bench.reports.last["state"] == "failed"
        assert "28" in bench.reports.last["why"]
    os.remove("/junk")
    assert loader.read()["slot"] == ""
    bench.begin()
    assert bench.send(image(files, serial=6), 4000) == ota.READY
    assert written("/a", files)


def no_memory() -> None:
    """Without memory for the manifest the image is refused, and nothing is raised."""
    bench = Bench()
    made = image({"%096d" % i: b"" for i in range(35)})
    end = 38 + (made[4] << 8 | made[5])
    pieces = [
        made[6:14] + bytes([1, 0, at >> 8, at & 255]) + made[at : at + 370] for at in range(0, end, 370)
    ]
    ballast = []
    size = 1 << 18
    while size >= 2048:
        try:
            ballast.append(bytearray(size))
        except MemoryError:
            size //= 2
    for _ in range(2):
        ballast.pop()
    for piece in pieces:
        bench.give(piece)
        bench.polls(1)
    ballast.clear()
    gc.collect()
    assert bench.receiver.state == ota.IDLE
    assert b"out of memory" in bench.reports.sent[0]
    assert bench.offer(made)["state"] == "receiving"


def fill(name: str) -> None:
    """Fill the flash."""
    for n in (4096, 256, 16, 1):
        try:
            with open(name + str(n), "wb") as junk:
                while True:
                    junk.write(bytes(n))
                    junk.flush()
        except OSError:
            pass
    for n in range(100):
        try:
            with open(name + "-%d" % n, "wb"):
                pass
        except OSError:
            break


def confirm_on_a_full_flash() -> None:
    """A version that is connected, but cannot be confirmed, goes on and reports it, and is confirmed once it can be."""
    bench = Bench()
    assert bench.send(image(serial=1), 400) == ota.READY
    start()
    fill("/junk")
    for by_program in (False, True):
        bench.begin(confirm=not by_program)
        for _ in range(4):
            bench.reports.now += 3000
            if by_program:
                assert "OSError" in loader.confirm()
            bench.polls(3)
        assert loader.on_trial
        assert loader.read()["left"] == 3
        if not by_program:
            assert "OSError" in bench.reports.last["why"], bench.reports.last
            assert bench.reports.last["trial"]
    for name in os.listdir("/"):
        if name.startswith("junk"):
            os.remove("/" + name)
    bench.begin()
    bench.polls(1)
    assert not loader.on_trial
    assert "left" not in loader.read()
    assert not bench.reports.last["trial"]


def mark_on_a_full_flash() -> None:
    """Nothing is raised; the start counts as failed until the flash can be written."""
    bench = Bench()
    assert bench.send(image(serial=1), 400) == ota.READY
    start()
    fill("/junk")
    bench.begin()
    bench.reports.state = PAUSE
    for _ in range(4):
        bench.reports.now += 5000
        bench.polls(1)
    assert loader.read()["start"] == 1
    for name in os.listdir("/"):
        if name.startswith("junk"):
            os.remove("/" + name)
    bench.reports.now += 5000
    bench.polls(1)
    assert loader.read()["start"] == 3


def no_memory_at_all() -> None:
    """Neither ``take`` nor ``poll`` raises while nothing can be allocated, at any point of an update."""
    made = image()
    end = 38 + (made[4] << 8 | made[5])
    bad = b"ABCD" + made[4:]
    for at in (0, 1, 2, 3, 4, 5, 6):
        bench = Bench()
        if at == 1:
            bench.piece(made, 0, end)
        elif at == 2:
            bench.offer(made)
        elif at == 3:
            bench.offer(made)
            bench.piece(made, end, 400)
        elif at == 4:
            bench.offer(made)
            bench.piece(made, end, len(made))
        elif at == 5:
            assert bench.send(made, 400) == ota.READY
            start()
            bench.begin()
        elif at == 6:
            bench.offer(made)
            bench.receiver._fail("test")
        pieces = []
        for source, where, n in (
            (made, 0, end),
            (bad, 0, end),
            (made, 0, 38),
            (made, end, 400),
            (made, end, len(made)),
        ):
            piece = Piece(len(TOPIC) + 12 + n)
            pieces.append(
                piece.fill(made[6:14] + bytes([1, 0, where >> 8, where & 255]) + source[where : where + n])
            )
        gc.collect()
        micropython.heap_lock()
        try:
            for piece in pieces:
                bench.receiver.take(piece)
                bench.receiver.poll()
        finally:
            micropython.heap_unlock()
        # Then it goes on.
        if at == 5:
            bench.polls(1)
            assert "left" not in loader.read()
            continue
        if bench.receiver.state == ota.IDLE:
            bench.polls(1)
            bench.reports.sent.clear()
        assert bench.send(made, 400) == ota.READY, (at, bench.reports.last)
        assert written("/a")


def heap() -> None:
    """Receiving pieces of a file allocates nothing; what an update takes at its most, beside the receiver."""
    files = {"big": bytes(60000), "lib/bme280.mpy": b"", "lib/display.mpy": b"", "app.py": b""}
    made = image(files)
    bench = Bench()
    bench.reports.sent.clear()
    gc.collect()
    before = gc.mem_alloc()
    bench.offer(made)
    bench.reports.sent.clear()
    while bench.receiver._file_at == 0:
        bench.piece(made, bench.receiver.at, 400)
    gc.collect()
    used = gc.mem_alloc() - before
    print(used, "bytes for an update under way")
    assert used < 3600, used
    pieces = Piece(600)
    header = made[6:14]
    bench.polls(2)
    at = begin = bench.receiver.at
    pieces.fill(header + bytes([0, at >> 16, at >> 8 & 255, at & 255]) + bytes(400))
    where = pieces.payload_at
    gc.collect()
    micropython.heap_lock()
    try:
        for _ in range(100):
            pieces.buf[where + 9] = at >> 16
            pieces.buf[where + 10] = at >> 8 & 255
            pieces.buf[where + 11] = at & 255
            bench.receiver.take(pieces)
            at += 400
    finally:
        micropython.heap_unlock()
    assert bench.receiver.at == begin + 40000
    gc.collect()
    used = gc.mem_alloc()
    micropython.heap_lock()
    try:
        for _ in range(100):
            bench.receiver.poll()
    finally:
        micropython.heap_unlock()
    gc.collect()
    assert gc.mem_alloc() == used


def run(name: str) -> None:
    globals()[name]()
    print("passed", name)


if __name__ == "__main__":
    run(sys.argv[1])
