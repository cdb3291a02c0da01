"""The uplink with a failure at every call in turn, of the queue manager, the process and the file."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.errors import failed
from headwater_host.mq.uplink.uplink import Uplink, UplinkConfig
from headwater_mq.forward import Forward
from tests.host.mq_recorder import Fault, Recorder
from tests.host.mq_uplink import DATA, PLAIN, RECORDED, arrived, fill, opened, queues, run, steps

pytestmark = [pytest.mark.needs_ibmmq, pytest.mark.needs_cc]


def failing(faults: dict[int, Fault]) -> Callable[[int, str], Fault | None]:
    return lambda number, _verb: faults.get(number)


def _calls(config: UplinkConfig, folder: Path) -> list[str]:
    """The calls of a run in which nothing fails."""
    outbox = opened(folder / "calls.db")
    fill(outbox)
    recorder = Recorder(queues())
    run(outbox, config, recorder)
    outbox.close()
    return recorder.verbs()


#: What may go wrong at a call: the connection is lost before or behind its effect, or the call fails.
_FAULTS = [
    Fault(2009, dies=True),
    Fault(2009, dies=True, done=True),
    Fault(2009, dies=True, late=4),
    Fault(2162, dies=True),
    Fault(2003),
    Fault(2053),
    Fault(2085),
    Fault(2195),
    Fault(2024),
    Fault(9999),
]


@pytest.mark.parametrize(
    "config, fault",
    # Without a record only what becomes of MQCMIT differs.
    [(RECORDED, fault) for fault in _FAULTS] + [(PLAIN, fault) for fault in _FAULTS[:3]],
    ids=lambda value: "recorded" if value == RECORDED else "plain" if value == PLAIN else str(value),
)
def test_a_failure_at_any_call(tmp_path: Path, config: UplinkConfig, fault: Fault) -> None:
    calls = _calls(config, tmp_path)
    outbox = opened(tmp_path / "mq.db")
    for at, verb in enumerate(calls):
        if verb in ("MQDISC", "MQCLOSE") or (fault.done and verb == "MQPUT" and not fault.dies):
            continue
        outbox.begin_again()
        fill(outbox)
        recorder = Recorder(queues(), failing({at: fault}))
        uplink = run(outbox, config, recorder)
        found = arrived(recorder)
        assert set(found) == set(DATA), (at, verb)
        assert uplink.dead == 0
        if config.record_queue:
            assert found == DATA, (at, verb)
        elif verb == "MQCMIT":
            # Sent again, with the same MsgId: whoever wants them once can tell.
            ids = [message.md["MsgId"] for message in recorder.queues["IN"].messages]
            assert [found[number] for number, one in enumerate(ids) if one not in ids[:number]] == DATA
            assert max(Counter(ids).values()) <= 2
        else:
            assert found == DATA, (at, verb)
    outbox.close()


@pytest.mark.parametrize("seed", range(3))
def test_failures_one_behind_the_other(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    outbox = opened(tmp_path / "mq.db")
    for _ in range(6):
        outbox.begin_again()
        fill(outbox)
        faults = {number: rng.choice(_FAULTS) for number in range(200) if rng.random() < 0.2}
        recorder = Recorder(queues(), failing(faults))
        run(outbox, RECORDED, recorder)
        assert arrived(recorder) == DATA
    outbox.close()


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """An outbox of a process that ends before or behind one of its changes."""

    def __init__(self, outbox: Forward, at: int):
        self._outbox = outbox
        self._at = at
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        if name not in ("settle", "prepare", "number"):
            return getattr(self._outbox, name)

        def change(*arguments: Any) -> None:
            self.changes += 1
            if self.changes * 2 - 1 == self._at:
                raise Killed
            getattr(self._outbox, name)(*arguments)
            if self.changes * 2 == self._at:
                raise Killed

        return change


def test_the_process_ends_at_any_change(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "mq.db")
    deaths = 0
    for at in range(1, 40):
        outbox.begin_again()
        fill(outbox)
        recorder = Recorder(queues())
        mortal = Mortal(outbox, at)
        uplink = Uplink(RECORDED, mortal)
        try:
            with recorder:
                while outbox.depth() or outbox.state().pending:
                    uplink.step()
        except Killed:
            deaths += 1
        # The queue manager notices that nobody is there any more.
        with recorder:
            uplink._drop()
        run(outbox, RECORDED, recorder)
        assert arrived(recorder) == DATA, at
    assert deaths > 10
    outbox.close()


def test_a_commit_that_is_on_its_way_is_waited_for(outbox: Forward) -> None:
    """The connection is lost in MQCMIT, and the queue manager does it only after the uplink is back."""
    calls = _calls(RECORDED, Path(outbox.file.path).parent)
    at = [number for number, verb in enumerate(calls) if verb == "MQCMIT"][1]
    fault = Fault(2009, dies=True, late=12)
    recorder = Recorder(queues(), lambda number, _verb: fault if number == at else None)
    uplink = run(outbox, RECORDED, recorder)
    assert arrived(recorder) == DATA
    assert uplink.doubts == 1
    # It looked for the record before it was there again.
    assert uplink.connections > 2


class Failing:
    """An outbox the file of which is in trouble, a few times."""

    def __init__(self, outbox: Forward, name: str):
        self._outbox = outbox
        self._name = name
        self.left = 3

    def __getattr__(self, name: str) -> Any:
        def fail(*arguments: Any) -> Any:
            if name == self._name and self.left:
                self.left -= 1
                raise failed(CMQC.MQRC_STORAGE_MEDIUM_FULL, "the disk is full")
            return getattr(self._outbox, name)(*arguments)

        return fail


@pytest.mark.parametrize("config", [PLAIN, RECORDED], ids=["plain", "recorded"])
@pytest.mark.parametrize("name", ["batch", "settle", "prepare", "number", "state"])
def test_a_file_in_trouble_costs_nothing(
    outbox: Forward, config: UplinkConfig, name: str, recorder: Recorder
) -> None:
    broken = Failing(outbox, name)
    uplink = steps(broken, config, recorder, 60)
    assert arrived(recorder) == DATA
    assert recorder.misuse == []
    if broken.left < 3:
        assert "the disk is full" in str(uplink.last_error)
