"""The table of what the hub refuses names every reason code that the code sends, and no other."""

import ast
from pathlib import Path

from headwater.mqtt import spec5
from headwater.names5 import CODES
from headwater_host import hub
from headwater_host.hub.refusals import REFUSALS

FOLDER = Path(hub.__file__).parent


def used(path: Path) -> set[int]:
    """The reason codes that a module names."""
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    return {getattr(spec5, node.attr) for node in nodes if ast.unparse(node.value) == "spec5"}


def test_each_refusal_has_a_row() -> None:
    found = {
        (code, ".".join(path.relative_to(FOLDER).with_suffix("").parts))
        for path in FOLDER.rglob("*.py")
        if path.name != "refusals.py"
        for code in used(path)
    }
    # A protocol error closes the connection, wherever it is raised; that is no refusal of its own.
    found.discard((spec5.PROTOCOL_ERROR, "connection"))
    # A slave reads this code in the answer of a hub that does not lead.
    found.discard((spec5.SERVER_MOVED, "replication.line"))
    assert {(row.code, row.module) for row in REFUSALS} == found


def test_rows_are_in_order_and_name_codes_of_the_standard() -> None:
    codes = [row.code for row in REFUSALS]
    assert codes == sorted(codes)
    assert set(codes) <= CODES.keys()
    assert len(set(REFUSALS)) == len(REFUSALS)
