"""Updates over the air: a virtual board, real servers, and the sender of `headwater board publish-update`."""

import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.board.update import UpdateError, send
from headwater_host.client.fmq import Client as FmqClient
from headwater_host.client.mqtt import Client
from tests.hil import updates
from tests.hil.update_cuts import BACK, RECEIVE, SEED, TRIAL, Bench, board_of
from tests.host.command import running
from tests.host.hub_client import config, hub_of
from tests.waiting import wait_until
from tools.board_air import PASSWORD, SSID
from tools.broker import Mosquitto, free_port
from tools.deploy import package_files
from tools.toolchain import ROOT
from tools.virtual_board import Content, VirtualBoard

Start = Callable[..., Mosquitto]

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto, pytest.mark.timeout(300)]


def test_updates_in_a_row_and_a_downgrade(mosquitto: Start) -> None:
    broker = mosquitto()
    with updates.board(broker.port) as board:
        for serial, number in enumerate(("1", "1.9", "1.10"), 1):
            data = updates.image(updates.version(number), number, serial)
            asyncio.run(updates.install(broker.port, data))
            assert f"version {number} starts" in board.log
        with pytest.raises(
            UpdateError, match=r"version 1\.10 runs; 1\.9 is a downgrade, and not signed as one"
        ):
            asyncio.run(updates.install(broker.port, updates.image(updates.version("1.9"), "1.9", 4)))
        mark = board.mark
        back = updates.image(updates.version("1.9"), "1.9", 5, downgrade=True)
        asyncio.run(updates.install(broker.port, back))
        board.wait_for("version 1.9 is online", after=mark)
        # What runs already is no error: a command that was repeated ends well.
        asyncio.run(updates.install(broker.port, back))


def test_an_update_of_the_library(mosquitto: Start) -> None:
    """The library in a slot hides the installed modules; the loader stays the installed one."""
    broker = mosquitto()
    files = updates.version("1", **{"app.py": (WHERE + updates.APP).encode()})
    others = re.compile(r"/lib/headwater/(fmq|ibmmq|link|compat)/")
    library = {name: path for name, path in package_files("mpy").items() if not others.match(name)}
    files.update({name.lstrip("/"): path.read_bytes() for name, path in library.items()})
    with updates.board(broker.port) as board:
        data = updates.image(files, "1", 1)
        asyncio.run(updates.install(broker.port, data))
        board.wait_for("version 1 is online")
        assert "modules /a/lib/headwater_board/ota.mpy /lib/headwater_board/loader.mpy\n" in board.log
        # The new receiver installs the next update, and the old modules come back with it.
        mark = board.mark
        asyncio.run(updates.install(broker.port, updates.image(updates.version("2"), "2", 2)))
        board.wait_for("version 2 is online", after=mark)


def test_an_asyncio_program(mosquitto: Start) -> None:
    broker = mosquitto()
    with updates.board(broker.port, {"app.py": AIO}) as board:
        files = updates.version("1", **{"app.py": AIO.encode()})
        asyncio.run(updates.install(broker.port, updates.image(files, "1")))
        mark = board.wait_for("version 1 starts")

        async def talk() -> None:
            async with Client("127.0.0.1", broker.port) as client:
                await client.publish("boards/shed/command", "blink", qos=1)

        board.wait_for("version 1 is online", after=mark)
        asyncio.run(talk())
        board.wait_for("command blink", after=mark)


AIO = """
import asyncio
import machine
from settings import PORT
from version import VERSION
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board import aio
from headwater_board.ota import Receiver
from headwater_board.tcp import Tcp

async def tend(update):
    while True:
        update.poll()
        await asyncio.sleep_ms(20)

async def main():
    print("version", VERSION, "starts")
    keeper = Keeper(Client(Tcp("127.0.0.1", PORT), b"shed", clean_start=False), first_ms=20, longest_ms=200)
    client = aio.Client(keeper)
    arrived = keeper.client.on_message
    update = Receiver(keeper, b"boards/shed/update", KEY, "shed", restart=machine.reset)
    keeper.client.on_message = lambda message: update.take(message) or arrived(message)
    asyncio.create_task(tend(update))
    async with client:
        await client.subscribe(update.topic, 1)
        await client.subscribe(b"boards/shed/command", 1)
        print("version", VERSION, "is online")
        async for message in client:
            print("command", str(message.payload, "ascii"))

asyncio.run(main())
""".replace("KEY", repr(updates.KEY))
WHERE = """
from headwater_board import loader, ota
print("modules", ota.__file__, loader.__file__)
"""
RAISES = b"import version\nprint('version', version.VERSION, 'starts')\nraise ValueError('no sensor')\n"
HANGS = b"import version\nprint('version', version.VERSION, 'starts')\nwhile True:\n    pass\n"
ENDS = b"import version\nprint('version', version.VERSION, 'starts')\n"
ALONE = updates.APP.replace("PORT)", "1)").encode()


#: Programs, why each is rolled back, and how often it starts.
UNHEALTHY = {
    "raises": (RAISES, "ValueError: no sensor", 3),
    "syntax": (b"def broken(:\n", "SyntaxError", 0),
    "hangs": (HANGS, "it hung, ended or was reset before it was connected", 3),
    "ends": (ENDS, "it hung, ended or was reset before it was connected", 3),
    "finds no server": (ALONE, "not connected within 1 s", 3),
}


def test_versions_that_are_not_healthy_are_rolled_back(mosquitto: Start) -> None:
    broker = mosquitto()
    with updates.board(broker.port, port="rp2", watchdog_ms=400, trial_s=1, pace=0.02) as board:
        asyncio.run(updates.install(broker.port, updates.image(updates.version("1"), "1", 1)))
        for serial, (program, why, starts) in enumerate(UNHEALTHY.values(), 2):
            mark = board.mark
            bad = updates.image(updates.version("2", **{"app.py": program}), "2", serial)
            with pytest.raises(UpdateError, match="version 2 did not become healthy") as failed:
                asyncio.run(updates.install(broker.port, bad))
            assert why in str(failed.value)
            assert "the board runs 1 again" in str(failed.value)
            assert board.log[mark:].count("version 2 starts") == starts
        # The board takes the next one.
        asyncio.run(updates.install(broker.port, updates.image(updates.version("3"), "3", 99)))


SLEEPS = (
    """
import time
from settings import PORT
from version import VERSION
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board import sleep
from headwater_board.ota import Receiver
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi
print("version", VERSION, "starts")
client = Client(Tcp("127.0.0.1", PORT), b"shed", clean_start=False)
keeper = Keeper(client, first_ms=20, longest_ms=200, network=Wifi([("SSID", "PASSWORD")]))
update = Receiver(keeper, b"boards/shed/update", KEY, "shed")
keeper.client.on_message = update.take
keeper.subscribe(update.topic, 1)
keeper.publish(b"boards/shed/celsius", b"21.5", 1)
keeper.start()
for _ in range(100):
    keeper.wait(10)
    time.sleep_ms(1)
    update.poll()
if keeper.connections:
    print("version", VERSION, "is online")
sleep.cycle(keeper, 60000, timeout_ms=200)
""".replace("KEY", repr(updates.KEY))
    .replace("SSID", SSID)
    .replace("PASSWORD", PASSWORD)
)


@pytest.mark.parametrize("program", ["awake", "sleeping"])
def test_a_broker_that_is_away_during_the_trial(mosquitto: Start, program: str) -> None:
    """The version stays on trial over more starts than a failing one gets, and is confirmed later."""
    broker = mosquitto(persistence=True)
    files = {} if program == "awake" else {"app.py": SLEEPS.encode()}
    with updates.board(broker.port, port="rp2", hold=True, trial_s=6, pace=0.02) as board:

        async def send_until(text: str) -> None:
            data = updates.image(updates.version("1", **files), "1")
            sending = asyncio.ensure_future(updates.install(broker.port, data))
            await asyncio.to_thread(board.wait_for, text)
            sending.cancel()

        asyncio.run(send_until("restart due"))
        broker.stop()
        mark = board.mark
        board.power_cut()
        board.power_on()
        for _ in range(5):
            mark = board.wait_for("version 1 starts", after=mark)
            if program == "sleeping":
                board.wait_asleep()
                board.wake()
        broker.start()
        if program == "sleeping":
            while "version 1 is online" not in board.log:
                board.wait_asleep(20)
                board.wake()
        board.wait_for("version 1 is online")
        assert "rolled back" not in board.log
        board.power_cut()
        assert "left" not in json.loads(board.get("headwater.slot"))


FICKLE = b"""
try:
    n = len(open("/tries").read())
except OSError:
    n = 0
with open("/tries", "a") as file:
    file.write("x")
print("try", n)
if n < 3:
    raise ValueError("no sensor")
"""


def test_an_image_that_was_rolled_back_is_tried_again_on_request(mosquitto: Start) -> None:
    broker = mosquitto()
    with updates.board(broker.port) as board:
        data = updates.image(updates.version("1", **{"app.py": FICKLE + updates.APP.encode()}), "1")
        for _ in range(2):
            # Repeating the command tries nothing again.
            with pytest.raises(UpdateError, match=r"no sensor.*the board runs 0 again"):
                asyncio.run(updates.install(broker.port, data))
            assert "try 2" in board.log
            assert "try 3" not in board.log
        asyncio.run(updates.install(broker.port, data, again=True))
        assert "try 3\nversion 1 starts" in board.log


def test_an_update_goes_on_over_lost_connections_and_power_cuts(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    big = updates.image(updates.version("1", **{"data/big.bin": bytes(range(251)) * 600}), "1")
    seen: list[int] = []
    steps = iter((40000, 70000, 110000))
    due = next(steps)

    with updates.board(broker.port, flash_size=2 << 20) as board:

        async def disturb() -> None:
            nonlocal due
            for act in (restart_broker, cut, freeze):
                while not seen or seen[-1] < due:
                    await asyncio.sleep(0.001)
                await asyncio.to_thread(act)
                due = next(steps, 0)

        def restart_broker() -> None:
            broker.stop()
            broker.start()

        def cut() -> None:
            board.power_cut()
            board.power_on()

        def freeze() -> None:
            board.power_cut(half_open=True)
            board.power_on()

        async def run() -> None:
            disturbing = asyncio.ensure_future(disturb())
            await updates.install(
                broker.port, big, progress=lambda state, at, size: seen.append(at), silence=0.5
            )
            await disturbing

        asyncio.run(run())
    back = [(a, b) for a, b in itertools.pairwise(seen) if b < a]
    # An update resumes behind the last synced byte.
    assert all(b > 30000 and a - b < 40000 for a, b in back), back
    assert [event for _, event in board.events].count("power cut") >= 2


def test_an_update_over_fmq(tmp_path: Path) -> None:
    async def run() -> None:
        async with hub_of(config(tmp_path)) as hub:
            port = hub.addresses[0][1]
            board = await asyncio.to_thread(updates.board(port, fmq=True).start)
            try:
                await asyncio.to_thread(board.wait_for, "version 0 is online")
                async with FmqClient("127.0.0.1", port) as client:
                    await send(client, updates.TOPIC, updates.image(updates.version("1"), "1"), timeout=60)
                assert "version 1 starts" in board.log
            finally:
                await asyncio.to_thread(board.close)

    asyncio.run(run())


def _changed(module: str, old: str, new: str) -> dict[str, Content]:
    """Return the installed modules, with one of them changed."""
    source = (ROOT / "ports" / "micropython" / "headwater_board" / f"{module}.py").read_text()
    assert re.search(old, source, re.MULTILINE)
    files: dict[str, Content] = {**package_files("mpy")}
    del files[f"/lib/headwater_board/{module}.mpy"]
    return {**files, f"/lib/headwater_board/{module}.py": re.sub(old, new, source, flags=re.MULTILINE)}


OLD_LOADER = ("loader", r"^VERSION = \d+$", "")
CURE = r"headwater_board\.loader is too old: install headwater-update over USB"


def test_an_installed_receiver_refuses_images_if_its_loader_is_older(mosquitto: Start) -> None:
    broker = mosquitto()
    with updates.board(broker.port, installed=_changed(*OLD_LOADER)) as board:
        board.wait_for("version 0 is online")
        with pytest.raises(UpdateError, match=f"the board refused the update: .*{CURE}"):
            asyncio.run(updates.install(broker.port, updates.image(updates.version("1"), "1")))
        assert "version 1" not in board.log


def test_an_update_with_a_receiver_that_needs_a_newer_loader_is_rolled_back(mosquitto: Start) -> None:
    broker = mosquitto()
    installed = {
        **_changed(*OLD_LOADER),
        **_changed("ota", r"^_LOADER = const\(\d+\)$", "_LOADER = const(1)"),
    }
    del installed["/lib/headwater_board/loader.mpy"], installed["/lib/headwater_board/ota.mpy"]
    others = re.compile(r"/lib/headwater/(fmq|ibmmq|link|compat)/")
    library = {name: path for name, path in package_files("mpy").items() if not others.match(name)}
    files = updates.version("1", **{name.lstrip("/"): path.read_bytes() for name, path in library.items()})
    with updates.board(broker.port, installed=installed) as board:
        board.wait_for("version 0 is online")
        with pytest.raises(UpdateError, match=rf"{CURE}\); the board runs 0 again"):
            asyncio.run(updates.install(broker.port, updates.image(files, "1")))
        # The receiver that is installed takes a version without the library.
        asyncio.run(updates.install(broker.port, updates.image(updates.version("2"), "2", 2)))


#: Publishes in ``on_message``, for each piece of an update and for each command.
ECHO = """
pieces = 0

def on_message(message):
    global pieces
    if update.take(message):
        pieces += 1
        keeper.publish(b"boards/shed/piece", b"x", pieces % 3)
    else:
        keeper.publish(b"boards/shed/echo", message.payload_bytes(), 1)

keeper.client.on_message = on_message
keeper.subscribe(b"boards/shed/command", 1)
"""
ECHOING = updates.APP.replace("keeper.client.on_message = update.take", ECHO)


def test_publishing_in_on_message_during_an_update(mosquitto: Start) -> None:
    broker = mosquitto()
    commands = [b"%d" % i for i in range(100)]
    with updates.board(broker.port, {"app.py": ECHOING}) as board:
        board.wait_for("version 0 is online")
        files = updates.version("1", **{"app.py": ECHOING.encode(), "data/big.bin": bytes(range(251)) * 300})

        async def run() -> list[bytes]:
            echoes: list[bytes] = []
            async with Client("127.0.0.1", broker.port) as client:
                await client.subscribe("boards/shed/echo")
                update = asyncio.ensure_future(updates.install(broker.port, updates.image(files, "1")))
                for command in commands:
                    await client.publish("boards/shed/command", command, qos=1)
                    await asyncio.sleep(0.01)
                await update
                while set(echoes) < set(commands):
                    message = await asyncio.wait_for(client.messages.__anext__(), 30)
                    echoes.append(bytes(message.payload))
            return echoes

        # At QoS 1 the restart may duplicate some; none is lost.
        assert set(asyncio.run(run())) == set(commands)
        assert "version 1 starts" in board.log


def test_one_command_and_two_boards_on_one_topic(mosquitto: Start) -> None:
    """The command ends with the first board that confirms; the second one works, in the old version or the new one."""
    broker = mosquitto()
    second = updates.APP.replace('b"shed", clean', 'b"shed-2", clean')
    assert second != updates.APP
    with updates.board(broker.port) as one, updates.board(broker.port, {"app.py": second}) as two:
        for board in (one, two):
            board.wait_for("version 0 is online")
        files = updates.version("1", **{"app.py": PAIR, "data/big.bin": bytes(range(251)) * 300})
        asyncio.run(updates.install(broker.port, updates.image(files, "1")))
        # A board confirms the version before its output has arrived here.
        wait_until(lambda: "version 1 is online" in one.log + two.log)
        for board in (one, two):
            mark = board.mark
            board.reset()
            board.wait_for("is online", after=mark)
            assert "Traceback" not in board.log


#: A program for two boards, which need different client identifiers.
PAIR = b"import os\n" + updates.APP.replace('b"shed", clean', "os.urandom(4).hex().encode(), clean").encode()


def test_two_commands_with_one_image(mosquitto: Start) -> None:
    broker = mosquitto()
    data = updates.image(updates.version("1"), "1")
    with updates.board(broker.port) as board:
        board.wait_for("version 0 is online")

        async def both() -> None:
            await asyncio.gather(*(updates.install(broker.port, data) for _ in range(2)))

        asyncio.run(both())
        board.wait_for("version 1 is online")
        assert board.log.count("version 1 starts") == 1


def _command(port: int, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headwater_host", "board", "publish-update", "-p", str(port), *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_the_command(mosquitto: Start, tmp_path: Path) -> None:
    broker = mosquitto()
    new = tmp_path / "new"
    for name, data in updates.version("1").items():
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).write_bytes(data)
    key = tmp_path / "shed.key"
    key.write_text(updates.KEY.hex() + "\n")
    wrong = tmp_path / "barn.key"
    wrong.write_bytes(b"another key of 32 bytes, as it is")
    given = (str(new), "-t", updates.TOPIC, "--target", updates.TARGET, "--release", "1")
    silent = _command(
        broker.port, *given, "--signing-key", str(key), "--wait", "1", "--save", str(tmp_path / "update.hwu")
    )
    assert silent.returncode == 4
    assert "no report from the board for 1 s: it is off" in silent.stderr
    with updates.board(broker.port) as board:
        board.wait_for("version 0 is online")
        refused = _command(broker.port, *given, "--signing-key", str(wrong))
        assert refused.returncode == 1
        assert "the board refused the update: the signature does not match this board's key" in refused.stderr
        other = _command(broker.port, *given[:4], "barn", *given[5:], "--signing-key", str(key))
        assert "it is for the board barn; this is shed" in other.stderr
        done = _command(broker.port, "--image", str(tmp_path / "update.hwu"), "-t", updates.TOPIC)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-2:] == ["the board restarts", "the board runs the new version"]
        assert "version 1 starts" in board.log


def test_ctrl_c_ends_the_command_with_a_line(mosquitto: Start, tmp_path: Path) -> None:
    broker = mosquitto()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "app.py").write_text("")
    (tmp_path / "shed.key").write_text(updates.KEY.hex())
    words = ["board", "publish-update", tmp_path / "new", "-t", updates.TOPIC, "--target", updates.TARGET]
    words += ["--release", "1", "--signing-key", tmp_path / "shed.key", "-h", "localhost", "-p", broker.port]
    with running(*words, directory=tmp_path) as command:
        wait_until(
            lambda: "Received SUBSCRIBE" in broker.log_text(), "the subscription to the board's reports"
        )
        assert command.end(signal.SIGINT) == 130
        assert (
            "headwater: interrupted; the board keeps its version until it has the whole image"
            in command.errors
        )


@pytest.mark.parametrize(
    "words, why",
    [
        (["nothing"], "missing: --target"),
        (["nothing", "--target", "shed", "--release", "1", "--signing-key", "none.key"], "not a directory"),
        (["--image", "none.hwu"], "cannot read none.hwu"),
        ([], "a directory with the files, or --image"),
    ],
)
def test_wrong_commands(words: list[str], why: str) -> None:
    done = _command(free_port(), "-t", updates.TOPIC, *words)
    assert done.returncode == 2
    assert why in done.stderr


def test_power_cuts_at_flash_operations(mosquitto: Start) -> None:
    """Samples; ``python -m tests.hil.update_cuts --every`` cuts each operation."""
    broker = mosquitto()
    with board_of(broker.port) as board:
        bench = Bench(board, broker.port)
        for phase, cuts in ((RECEIVE, range(2, 58, 8)), (TRIAL, (1, 3, 6)), (BACK, (1, 3))):
            for cut in cuts:
                assert bench.update(phase, [cut]) == 1, "the cut did not take place"
        # The broker does not notice these.
        assert sum(bench.random(5, SEED, half_open=True).elements()) > 3


FIRMWARE = b"\xe9" + bytes(range(253)) * 300
LABEL = "\nfrom esp32 import Partition\nprint('firmware', Partition(Partition.RUNNING).info()[4])\n"


def esp32_version(number: str, program: str = updates.APP) -> dict[str, bytes]:
    return updates.version(number, **{"app.py": (LABEL + program).encode()})


def test_a_firmware_image_and_one_that_does_not_work(mosquitto: Start) -> None:
    """Files and firmware change together, and go back together."""
    broker = mosquitto()
    with updates.board(
        broker.port, port="esp32", ota=True, watchdog_ms=1000, trial_s=60, flash_size=4 << 20
    ) as board:
        new = updates.image(esp32_version("1"), "1", 1, firmware=FIRMWARE)
        asyncio.run(updates.install(broker.port, new))
        assert "firmware ota_1\nversion 1 starts" in board.log
        mark = board.mark
        bad = updates.image(esp32_version("2", "print('broken')\n1 / 0\n"), "2", 2, firmware=FIRMWARE[:5000])
        with pytest.raises(UpdateError, match="ZeroDivisionError: divide by zero") as failed:
            asyncio.run(updates.install(broker.port, bad))
        assert "runs 1 again" in str(failed.value)
        board.wait_for("firmware ota_1\nversion 1 starts", after=mark)
        assert board.log[mark:].count("firmware ota_0\nbroken") == 3
        # Firmware and files of the next one.
        asyncio.run(
            updates.install(broker.port, updates.image(esp32_version("3"), "3", 3, firmware=FIRMWARE))
        )
        assert "firmware ota_0\nversion 3 starts" in board.log


def test_firmware_for_a_board_without_ota_partitions(mosquitto: Start) -> None:
    broker = mosquitto()
    data = updates.image(updates.version("1"), "1", firmware=FIRMWARE)
    for options in ({"port": "esp32", "flash_size": 4 << 20}, {"port": "rp2"}):
        with updates.board(broker.port, **options) as board:
            with pytest.raises(
                UpdateError, match="this board's firmware has no OTA partition for 75901 bytes"
            ):
                asyncio.run(updates.install(broker.port, data))
            assert "starts" in board.log


def test_power_cuts_while_firmware_is_written(mosquitto: Start) -> None:
    """Each cut is in another update of the same board: blocks of the image, files, the switch."""
    broker = mosquitto()
    with updates.board(broker.port, port="esp32", ota=True, watchdog_ms=1000, flash_size=4 << 20) as board:

        async def update(number: str, serial: int) -> None:
            data = updates.image(esp32_version(number), number, serial, firmware=FIRMWARE)
            sending = asyncio.ensure_future(updates.install(broker.port, data, silence=0.3))
            while not sending.done():
                await asyncio.sleep(0.01)
                # It is not running for a moment in each reset, too.
                if board.events[-1][1] == "power cut" and not board.running:
                    await asyncio.to_thread(board.power_on)
            await sending

        for serial, cut in enumerate((11, 52, 90), 1):
            board.power_cut()
            board.power_on(cut_at_flash_operation=cut)
            asyncio.run(update(f"1.{serial}", serial))
        cuts = [event for _, event in board.events].count("power cut")
        assert cuts == 2 * 3, "a cut did not take place"
        assert "Traceback" not in board.log


def test_the_example(mosquitto: Start, tmp_path: Path) -> None:
    """As its page says: the next version, and one that is broken."""
    broker = mosquitto()
    program = (ROOT / "examples" / "device" / "update.py").read_text()
    key = tmp_path / "shed.key"
    key.write_text(updates.KEY.hex())
    files: dict[str, Content] = {
        **package_files("mpy"),
        "app.py": program,
        "main.py": 'from headwater_board import loader\nloader.run("app")\n',
        "update.key": key,
    }
    given = ("-t", updates.TOPIC, "--target", "shed", "--signing-key", str(key))
    new = tmp_path / "new"
    new.mkdir()
    networks = {"workshop": "correct horse"}
    with VirtualBoard(files=files, port="rp2", flash="littlefs", heap="256K", networks=networks) as board:
        board.air.name("broker.local", "192.168.4.1")
        board.air.reach("192.168.4.1:1883", broker.port)
        board.wait_for("version 1.0")
        (new / "app.py").write_text(program.replace('"1.0"', '"1.1"'))
        done = _command(broker.port, str(new), *given, "--release", "1.1")
        assert done.returncode == 0, done.stderr
        assert "version 1.1" in board.log
        (new / "app.py").write_text("broken\n")
        done = _command(broker.port, str(new), *given, "--release", "1.2")
        assert done.returncode == 1
        assert "NameError: name 'broken' isn't defined); the board runs 1.1 again" in done.stderr


DEVICE = """
import gc
gc.threshold(8192)
from headwater_board.device import Device
from version import VERSION
print("version", VERSION, "starts")
device = Device()
device.on_message = lambda message: print("command", str(message.payload_bytes(), "ascii"))
device.subscribe(b"boards/shed/command", 1)
with device:
    while True:
        device.wait(1000)
"""


def test_a_device_with_settings(mosquitto: Start) -> None:
    """`Device` updates itself from the key `update` of its settings; its program gets the other messages.

    It feeds the watchdog of the loader.
    """
    broker = mosquitto()
    settings = {
        "wifi": [{"ssid": SSID, "password": PASSWORD}],
        "broker": {"protocol": "mqtt", "host": "192.168.4.1", "port": 1883, "client_id": "shed"},
        "update": {"topic": updates.TOPIC, "key_file": "/update.key"},
    }
    files: dict[str, Content] = {
        **package_files("mpy"),
        "headwater.json": json.dumps(settings),
        "update.key": updates.KEY.hex(),
        "main.py": 'from headwater_board import loader\nloader.run("app", watchdog_ms=1500)\n',
        "app.py": DEVICE,
        "version.py": 'VERSION = "0"\n',
    }
    with VirtualBoard(files=files, port="rp2", flash="littlefs", heap="256K") as board:
        board.air.reach("192.168.4.1:1883", broker.port)
        board.wait_for("version 0 starts")
        new = {"app.py": DEVICE.encode(), "lib/version.py": b'VERSION = "1"\n'}
        asyncio.run(updates.install(broker.port, updates.image(new, "1", 1)))
        mark = board.wait_for("version 1 starts")

        async def talk() -> None:
            async with Client("127.0.0.1", broker.port) as client:
                await client.publish("boards/shed/command", "blink", qos=1)

        asyncio.run(talk())
        board.wait_for("command blink", after=mark)
        time.sleep(2)
        assert "watchdog" not in [event for _, event in board.events]
        bad = updates.image({"app.py": b"import nothing\n"}, "2", 2)
        with pytest.raises(UpdateError, match="ImportError: no module named 'nothing'"):
            asyncio.run(updates.install(broker.port, bad))
