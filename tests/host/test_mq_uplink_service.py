"""Log, local queue and uplink together, as a gateway runs them; and ``headwater mq uplink`` by itself."""

import argparse
import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwater_host.capture import RECEIVED
from headwater_host.cli import mq_uplink
from headwater_host.exits import USAGE, CommandError
from headwater_host.gateway.mq_config import MqConfig
from headwater_host.gateway.mq_service import MqService, UplinkThread
from headwater_host.mq.uplink.mqi import Channel
from headwater_host.mq.uplink.uplink import UplinkConfig
from headwater_mq.forward import Forward
from tests.host.command import headwater
from tests.host.mq_log import cut, mqtt
from tests.host.mq_recorder import Queue, Recorder
from tests.host.mq_uplink import ROOM, fill, opened
from tools.capture_log import LogWriter

pytestmark = [pytest.mark.needs_ibmmq, pytest.mark.needs_cc]

UPLINK = UplinkConfig(Channel("QM1", "EDGE", "localhost(1414)"), "IN", "SYNC")


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_from_the_log_to_the_queue_manager(tmp_path: Path) -> None:
    config = MqConfig(tmp_path / "mq.db", ("a/#",), start="beginning", uplink=UPLINK)
    recorder = Recorder({"IN": Queue(), "SYNC": Queue()})
    data = bytes(range(256)) * 20

    async def scenario() -> None:
        with LogWriter(tmp_path / "log") as log, recorder:
            service = MqService(config, tmp_path / "log", lambda: log.log.next_sequence)
            service.start()
            for payload in [*cut(data, 400), b"plain"]:
                log.append(time.time_ns(), 1, "test", RECEIVED, 1, 4, mqtt("a/b", payload))
            log.flush()
            await asyncio.to_thread(wait_until, lambda: len(recorder.queues["IN"].messages) == 2)
            with pytest.raises(CommandError, match="another uplink sends what is in"):
                UplinkThread(config)
            status = service.status()
            # The uplink may have sent what it put before the follower has said so.
            wanted = {"mq": "following", "mq uplink": "connected"}
            await asyncio.to_thread(wait_until, lambda: dict(service.states()) == wanted)
            await service.stop()
            assert status["uplink"]["sent"] in (0, 1, 2)
            assert not [thread for thread in threading.enumerate() if thread.name in ("mq", "uplink")]

    asyncio.run(scenario())
    assert [message.data for message in recorder.queues["IN"].messages] == [data, b"plain"]
    assert recorder.misuse == []
    assert recorder.verbs()[-1] == "MQDISC"


def _file(folder: Path, more: str = "") -> Path:
    path = folder / "gateway.toml"
    path.write_text(
        f'capture = "log"\n[mq]\nfile = "{folder}/mq.db"\nqueue = "{ROOM.name}"\n'
        f'dead_letter_queue = "{ROOM.dead_letter_queue}"\ntopics = ["#"]\n{more}'
    )
    return path


_TABLE = (
    '[mq.uplink]\nqueue_manager = "QM1"\nchannel = "C"\nconnection = "localhost(1414)"\n'
    'queue = "IN"\nrecord_queue = "SYNC"\n'
)


def test_the_command_sends_until_a_signal(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "mq.db")
    fill(outbox)
    assert outbox.state().number == -1
    outbox.number(5)
    recorder = Recorder({"IN": Queue(), "SYNC": Queue()})

    def end() -> None:
        wait_until(lambda: not outbox.depth())
        os.kill(os.getpid(), signal.SIGTERM)

    # Without the option it would wait for a record.
    args = argparse.Namespace(config=_file(tmp_path, _TABLE), begin_again=True)
    ender = threading.Thread(target=end)
    with recorder:
        ender.start()
        assert mq_uplink.serve(args) == 0
    ender.join()
    outbox.close()
    assert len(recorder.queues["IN"].messages) == 8
    assert recorder.misuse == []


def test_what_the_command_refuses(tmp_path: Path) -> None:
    done = headwater("mq", "uplink", "--config", _file(tmp_path))
    assert (done.returncode, b"there is no table [mq.uplink] in" in done.stderr) == (2, True)
    done = headwater("mq", "uplink", "--config", _file(tmp_path, _TABLE.replace('"IN"', '"I N"')))
    assert (done.returncode, b"line 11: 'queue' in [mq.uplink] is a queue's name" in done.stderr) == (2, True)
    done = headwater("mq", "uplink", "--config", _file(tmp_path, _TABLE))
    assert (done.returncode, b"redistributable client" in done.stderr) == (USAGE, True)
    assert not (tmp_path / "mq.db").exists()


def test_a_failure_of_ours_ends_the_uplink_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Forward, "batch", fail)
    with Recorder({}):
        uplink = UplinkThread(replace(MqConfig(tmp_path / "mq.db", ("#",)), uplink=UPLINK))
        uplink.thread.start()
        uplink.thread.join(200)
    assert isinstance(uplink.failure, ZeroDivisionError)
    assert uplink.uplink.state == "failed"
    assert "the uplink has failed" in caplog.text
