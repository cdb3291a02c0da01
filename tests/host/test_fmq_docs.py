"""docs/protocols/fmq.md: its examples run, and its tables are the code's."""

import re
from dataclasses import dataclass
from typing import Any

from headwater.fmq import names, spec
from headwater.fmq.values import KINDS
from headwater_host.fmq.values import decode, encode
from tools.toolchain import ROOT

PAGE = (ROOT / "docs" / "protocols" / "fmq.md").read_text(encoding="utf-8")
FLAGS = {"SLAVEOF": "0 0 0 REG", "PUBLISH": "DUP QoS QoS RETAIN", "CONSUME": "0 0 ONCE NEEDACK"}
FLAGS["ELECT"] = "0 0 APPROVE VOTE"


@dataclass
class Pump:
    id: int
    name: str
    on: bool


def test_the_examples_run() -> None:
    said: dict[str, Any] = {"buf": bytearray(64), "limit": 64, "Pump": Pump}
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    # The one of the client needs a hub: ``tests/interop`` has it, as examples/device/fmq_telemetry.py.
    examples = [example for example in examples if "Client(" not in example]
    assert len(examples) == 2
    for example in examples:
        exec(example, said)
    assert decode(bytes(said["buf"][: said["at"]])) == {"t": 21.25, "ok": True}
    assert said["pump"] == Pump(7, "pump", True)
    (comment,) = re.findall(r"# ([0-9a-f ]+)\n", PAGE)
    assert encode(said["pump"]) == bytes.fromhex(comment)


def test_the_tables_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \|([^|]*)\|", PAGE, re.MULTILINE)
    assert {int(number): name for number, name, _ in rows} == {
        number: name for number, name in enumerate(names.TYPES) if number != 4
    }
    assert {name: flags.strip() for _, name, flags in rows if flags.strip()} == FLAGS
    kinds = {}
    for tags, kind in re.findall(r"^\| (\d+(?:, \d+)?) \| ([A-Z][a-z]\w+)", PAGE, re.MULTILINE):
        kinds.update({int(tag): kind for tag in tags.split(", ")})
    assert kinds == {tag: names.VALUES[KINDS[tag]] for tag in range(16)}


def test_the_core_s_private_numbers_are_those_of_spec() -> None:
    found = 0
    for path in sorted((ROOT / "sdk/headwater/fmq").glob("*.py")):
        for name, value in re.findall(
            r"^_([A-Z]\w*) = const\((.*)\)$", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            if hasattr(spec, name):
                found += 1
                assert eval(value) == getattr(spec, name), (path.name, name)
    assert found > 40
