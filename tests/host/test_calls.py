"""One PUBLISH enters no more functions than docs/architecture.md says."""

import re

from tools import calls


def test_no_path_enters_more_functions_than_documented() -> None:
    page = calls.DOCS.read_text(encoding="utf-8")
    documented = page[page.index(calls.BEGIN) : page.index(calls.END)]
    for name, entered in calls.paths().items():
        found = re.search(rf"^\| {re.escape(name)} \| (\d+) \|", documented, re.MULTILINE)
        assert found, f"{name}: run python -m tools.calls --update"
        assert len(entered) <= int(found[1]), (name, entered)
        assert entered[0].endswith(".publish") or entered[0].endswith(".poll")
        assert "calls.Line.write" in entered
