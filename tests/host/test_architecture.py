"""What importing a part of the core loads on a board. The import contracts are in pyproject.toml."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: What only MQTT 5.0 has, beside the modules whose names end with its number.
OF_5 = {"headwater.mqtt.properties", "headwater.mqtt.topic_aliases"}
#: What is for printing.
NAMES = {"headwater.reasons", "headwater.names5", "headwater.fmq.names"}
#: Modules that nothing on a board has: the core must not need them.
NOT_ON_A_BOARD = {
    "typing",
    "__future__",
    "dataclasses",
    "enum",
    "abc",
    "pathlib",
    "functools",
    "threading",
    "socket",
    "time",
}


@functools.cache
def runtime_imports(path: Path) -> set[str]:
    """The modules a file imports when it runs: imports under TYPE_CHECKING do not count."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def reached_from(*entries: str) -> set[str]:
    """The modules of the core that importing these imports."""
    files = {module_name(path, ROOT / "sdk"): path for path in (ROOT / "sdk/headwater").rglob("*.py")}
    found: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += runtime_imports(files[name]) & files.keys()
    return found


@pytest.mark.parametrize("entry", ["headwater.mqtt.client", "headwater.mqtt.session"])
def test_a_client_of_3_1_1_does_not_pay_for_other_versions(entry: str) -> None:
    reached = reached_from(entry)
    assert "headwater.mqtt.packets" in reached
    others = {name for name in reached if name.endswith(("5", "31"))} | reached & OF_5
    assert not others
    # Numbers are folded constants.
    assert "headwater.mqtt.spec" not in reached


def test_a_client_does_not_pay_for_the_server_nor_a_board_for_names() -> None:
    for entry in ("headwater.mqtt.client", "headwater.mqtt.v5", "headwater.mqtt.v31"):
        reached = reached_from(entry)
        assert not {name for name in reached if "server" in name or name in NAMES}, entry


def test_whoever_speaks_mqtt_does_not_pay_for_fmq() -> None:
    for entry in (
        "headwater.mqtt.client",
        "headwater.mqtt.client5",
        "headwater.mqtt.keeper",
        "headwater.mqtt.server5",
    ):
        assert not {name for name in reached_from(entry) if name.startswith("headwater.fmq")}, entry


def test_frames_of_fmq_cost_no_more_than_they_need() -> None:
    """What only some payloads have, names and hashes, is for those who import it."""
    reached = reached_from("headwater.fmq.frames", "headwater.fmq.client", "headwater.fmq.keeper")
    assert "headwater.fmq.values" in reached
    optional = ("calls", "manual_ack", "streaming", "numbers", "murmur3", "spec")
    assert not reached & {*(f"headwater.fmq.{name}" for name in optional), *NAMES}


def test_headers_of_ibm_mq_cost_no_more_than_they_need() -> None:
    """Who writes MQMDEs has no other table, and only who reads texts has those of EBCDIC."""
    reached = reached_from("headwater.ibmmq.segments")
    assert not reached & {"headwater.ibmmq.chain", "headwater.ibmmq.text"}
    assert "headwater.ibmmq.text" not in reached_from("headwater.ibmmq.chain")


def test_the_core_needs_nothing_a_board_lacks() -> None:
    for path in (ROOT / "sdk/headwater").rglob("*.py"):
        if path.name != "types.py":
            assert not runtime_imports(path) & NOT_ON_A_BOARD, path


def test_readme_and_tutorial_show_the_first_program_as_it_stands() -> None:
    example = (ROOT / "examples/device/first_board.py").read_text(encoding="utf-8")
    program = example.partition('"""\n\n')[2]
    assert len([line for line in program.splitlines() if line.strip()]) == 10
    for page in ("README.md", "docs/tutorials/first-board.md"):
        assert f"```python\n{program}```" in (ROOT / page).read_text(encoding="utf-8"), page
