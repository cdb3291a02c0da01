"""The documentation's examples of `headwater` are command lines that its parser accepts."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from headwater_host.cli import main
from tests.rows import each_row
from tools.toolchain import ROOT

EXAMPLES = sorted((ROOT / "examples").rglob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *EXAMPLES]
SEPARATORS = {"|", "&", "&&", "||", ";", ">", "<", "(", ")"}


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `headwater` in the page's shell blocks; of an example's page, in its text."""
    text = page.read_text(encoding="utf-8")
    if page in EXAMPLES:
        # Fewer words name a command.
        blocks = [" ".join(span.split()) for span in re.findall(r"`(headwater(?:\s+[^`\s]+){3,})`", text)]
    else:
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        # A quoted argument may span lines; otherwise a line is a command or a pipeline.
        script = re.sub(r"\s# .*$", "", block, flags=re.MULTILINE).replace("\n", " ;\n")
        lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for token in [*lexer, ";"]:
            if token not in SEPARATORS:
                words.append(token)
                continue
            # A prompt and settings of the environment stand before the command.
            while words and (words[0] == "$" or "=" in words[0]):
                words.pop(0)
            if words[:1] == ["headwater"]:
                yield words[1:]
            words = []


@each_row("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_are_accepted(page: Path) -> None:
    refused = []
    for arguments in commands(page):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed):
                main.make_parser(arguments).parse_args(arguments)
        except SystemExit:
            refused.append((shlex.join(arguments), printed.getvalue()))
    assert refused == []


def test_examples_are_found() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 50
    assert all(list(commands(page)) for page in EXAMPLES if page.stem not in ("deep_sleep",))
