"""docs/protocols/ibm-mq.md: its examples run, and its tables are the code's. `test_diagrams.py` compares the fields."""

import re
from typing import Any

import pytest

from headwater.ibmmq.chain import KNOWN
from headwater_host.mq import CMQC
from headwater_host.mq.structures import LAYOUTS, name_of
from tools.toolchain import ROOT

PAGE = (ROOT / "docs" / "protocols" / "ibm-mq.md").read_text(encoding="utf-8")


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    said: dict[str, Any] = {"buf": bytearray(100), "group": bytes(range(24))}
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        exec(example, said)
    assert capsys.readouterr().out.splitlines() == [
        "0 True",
        "b'MDE ' 0",
        "72 True",
        "2248 Format 20 Format at offset 20: 'MQSTRING!' is longer than 8 characters (reason 2248)",
    ]
    assert said["buf"][32:56] == bytes(range(24))
    assert said["fields"]["MsgFlags"] == CMQC.MQMF_MSG_IN_GROUP
    assert said["headers"] == [("MQMDE", 0, said["fields"])]
    assert said["rest"] == (72, "MQSTR   ", 273, 0)


def test_the_table_of_structures_is_that_of_the_code() -> None:
    rows = re.findall(
        r"^\| (MQ\w+) \| ([\d, ]+)[^|]*\| ([\d, ]+) \|[^|]*\|([^|]*)\| (\d+) (\w+) \|", PAGE, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["MQMD", "MQMDE", "MQXQH", "MQDLH"]
    formats = {name_of(layout): name.decode() for name, layout in KNOWN}
    for name, lengths, versions, format_name, number, reason in rows:
        _, code, _, _, by_version, _ = LAYOUTS[name]
        assert [int(n) for n in re.findall(r"\d+", lengths)] == [n for n in by_version if n]
        assert [int(n) for n in versions.split(",")] == [v for v, n in enumerate(by_version) if n]
        assert format_name.strip().strip("`") == formats.get(name, "")
        assert int(number) == code == getattr(CMQC, reason)


def test_every_module_has_its_line() -> None:
    modules = {path.stem for path in (ROOT / "sdk/headwater/ibmmq").glob("*.py")} - {"__init__"}
    table = PAGE.split("| module | what it is |")[1].split("\n\n")[0]
    assert {
        name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    } == modules
