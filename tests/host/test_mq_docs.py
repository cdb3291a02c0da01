"""docs/ibm-mq-queue.md: its example runs, and its tables are the code's."""

import re
import subprocess
import sys
from pathlib import Path

from headwater_host.mq import CMQC
from headwater_host.mq.fields import FAULTS
from headwater_mq import options
from tools.toolchain import ROOT

PAGE = (ROOT / "docs" / "ibm-mq-queue.md").read_text(encoding="utf-8")
CODE = ROOT / "ports" / "cpython"
#: What the calls of the local queue are made of.
MODULES = [
    *(f"headwater_host/mq/{name}.py" for name in ("get", "put", "transmission")),
    *(
        f"headwater_mq/{name}.py"
        for name in (
            *("attributes", "choosing", "manager", "messages", "options", "putting", "queue", "queue_file"),
        )
    ),
]


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (output,) = re.findall(r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(map(str, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_the_options_are_those_that_are_taken() -> None:
    for prefix, taken in (
        ("MQPMO_", options._PUT_OPTIONS),
        ("MQGMO_", options._GET_OPTIONS),
        ("MQMO_", options._MATCH_OPTIONS),
    ):
        rows = PAGE.split("## Not supported")[0]
        named = {getattr(CMQC, name) for name in re.findall(rf"`({prefix}[A-Z_0-9]+)`", rows)}
        assert sum(named) == taken, prefix


def test_the_reasons_are_those_that_are_given() -> None:
    given = set()
    for path in MODULES:
        given |= set(re.findall(r"MQRC_[A-Z0-9_]+", (CODE / path).read_text(encoding="utf-8")))
    # A message without a GroupId gets one from the queue manager.
    reasons = {reason for kind, (reason, _, _) in FAULTS.items() if kind != "group id"}
    given |= {name for name, value in vars(CMQC).items() if name.startswith("MQRC_") and value in reasons}
    given.discard("MQRC_NONE")
    table = PAGE.split("## Reason codes")[1].split("## Not supported")[0]
    rows = re.findall(r"(\d{4})\s+`(MQRC_[A-Z0-9_]+)`", table)
    assert {name for _, name in rows} == given
    assert all(getattr(CMQC, name) == int(number) for number, name in rows)
    assert set(re.findall(r"MQRC_[A-Z0-9_]+", PAGE)) <= given
