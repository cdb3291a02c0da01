"""The fuzz targets on their seeds, on hypothesis's inputs, and, where atheris is to be had, with its guidance."""

import os
import platform
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.connection import RxBuf
from tests.fuzz.targets import CORPUS, TARGETS, Target, read_corpus
from tools.toolchain import ROOT

#: What the wheels of atheris are for; elsewhere ``.[dev]`` does not ask for it.
_OFFERED = (
    platform.system() == "Linux"
    and platform.machine() == "x86_64"
    and (3, 11) <= sys.version_info[:2] < (3, 15)
)
with_atheris = (
    pytest.mark.needs_atheris
    if _OFFERED
    else pytest.mark.skip(reason="there is no atheris for this Python: x86-64 Linux, 3.11 to 3.14")
)
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@each_target
def test_every_seed_stands(target: Target) -> None:
    seeds = target.seeds()
    assert seeds
    for name, data in seeds.items():
        assert len(data) <= target.longest, name
        target.run(data)


def test_every_corpus_belongs_to_a_target() -> None:
    used = {target.name for target in TARGETS.values()} | {target.shares for target in TARGETS.values()}
    files = {path.stem for path in CORPUS.glob("*.txt")}
    assert files <= used
    for name in files:
        assert read_corpus(name)


@each_target
def test_inputs_made_of_seeds(target: Target) -> None:
    """Bytes of seeds changed, cut out, doubled, put behind each other."""
    seeds = sorted(target.seeds().values())

    @settings(max_examples=25, database=None)
    @given(st.lists(st.sampled_from(seeds), min_size=1, max_size=3), st.randoms(use_true_random=False))
    def run(parts: list[bytes], chance: random.Random) -> None:
        data = bytearray(b"".join(parts)[: target.longest])
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(data) + 1)
            piece = bytes(chance.randrange(256) for _ in range(chance.randrange(3)))
            data[at : at + chance.randrange(4)] = piece
        target.run(bytes(data))

    run()


def test_a_target_notices_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive buffer that moves one byte too few."""
    right = RxBuf._move
    monkeypatch.setattr(RxBuf, "_move", lambda self, start, to, n: right(self, start, to, n - 1))
    seed = TARGETS["rxbuf"].seeds()["small packets, large reads"]
    with pytest.raises(AssertionError):
        TARGETS["rxbuf"].run(seed)


# -- the command -------------------------------------------------------------------------------------------------------


def fuzz(*arguments: str | Path, code: str = "", timeout_s: int = 500) -> subprocess.CompletedProcess[str]:
    """Run the command, or a program in its place."""
    program = ["-c", code] if code else ["-m", "tests.fuzz"]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests/portable"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout_s,
    )


@with_atheris
@pytest.mark.timeout(1600)
def test_a_short_run_of_every_target(tmp_path: Path) -> None:
    """In one command, because the imports with counted branches take longer than the inputs."""
    done = fuzz("all", "--runs", "400", "--corpus", tmp_path, timeout_s=1500)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("stat::number_of_executed_units") == len(TARGETS)


BROKEN = """
import sys
from tests.fuzz import __main__, targets

def fail(data):
    if len(data) > 2:
        raise ValueError("three bytes are too many")

targets.TARGETS = {"broken": targets.Target("broken", fail)}
sys.exit(__main__.main())
"""


@with_atheris
def test_an_input_that_fails_is_shown(tmp_path: Path) -> None:
    done = fuzz("broken", "--runs", "1000", "--corpus", tmp_path, code=BROKEN)
    assert done.returncode == 1
    assert "broken: this input failed:" in done.stderr
    assert "three bytes are too many" in done.stdout + done.stderr
    assert "failed: broken" in done.stderr


def test_an_input_can_be_played_again() -> None:
    assert fuzz("topics", "--input", "612f620a612f2b").returncode == 0
    again = fuzz("broken", "--input", "616161", code=BROKEN)
    assert again.returncode == 1
    assert "broken: this input failed:\n  616161" in again.stderr


def test_the_table_is_listed() -> None:
    done = fuzz()
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(TARGETS)


def test_what_there_is_not_is_said_plainly() -> None:
    missing = "import sys; sys.modules['atheris'] = None; from tools import toolchain; "
    missing += (
        "toolchain.find = lambda name: None; from tests.fuzz import __main__; sys.exit(__main__.main())"
    )
    done = fuzz("packet-5.0", code=missing)
    assert done.returncode == 2
    assert done.stderr.startswith("atheris (a coverage-guided fuzzer) is missing: ")
    assert "Traceback" not in done.stderr


def test_a_target_that_there_is_not() -> None:
    done = fuzz("packet-6", "--input", "00")
    assert done.returncode == 2
    assert "there is no target 'packet-6'" in done.stderr
