"""The private constants of MQTT's modules are the numbers that ``spec`` and ``spec5`` name."""

import ast
from pathlib import Path

from headwater.mqtt import spec, spec5
from tests.rows import each_row

MODULES = sorted((Path(__file__).parents[2] / "sdk/headwater/mqtt").glob("*.py"))
#: Public names with one meaning, by name.
KNOWN = {
    name: {vars(module)[name] for module in (spec, spec5) if name in vars(module)}
    for module in (spec, spec5)
    for name in vars(module)
    if name.isupper()
}
#: Private names that mean something else: masks and sizes of their own module.
OTHERS = {"_SUBSCRIBE", "_UNSUBSCRIBE", "_MOST", "_AUTH"}


def constants(path: Path) -> dict[str, int]:
    """Return the private integer constants of a module, by name."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.targets[0])
            if ast.unparse(node.value.func) == "const" and name.startswith("_"):
                found[name] = eval(ast.unparse(node.value.args[0]))
    return found


@each_row("path", MODULES, ids=lambda path: path.stem)
def test_private_numbers_are_the_public_ones(path: Path) -> None:
    wrong = {
        name: value
        for name, value in constants(path).items()
        if name[1:] in KNOWN and value not in KNOWN[name[1:]] and name not in OTHERS
    }
    assert not wrong


def test_the_comparison_finds_something() -> None:
    found = [name for path in MODULES for name in constants(path) if name[1:] in KNOWN]
    assert len(found) > 40
