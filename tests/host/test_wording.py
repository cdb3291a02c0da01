"""Docstrings and comments of sdk/ and ports/ use the field's terms: no phrase of ``BANNED``, no riddle as a summary."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tools.toolchain import ROOT

#: Phrase (a regular expression of whole words) -> what to write instead.
BANNED = {
    r"sent again|goes? out again": "retransmitted",
    r"comes? again": "is redelivered; a duplicate",
    r"handed in": "published, enqueued",
    r"greets?|greeted|greetings?": "CONNECT, AUTH, handshake",
    r"vouch\w*": "CA certificates",
    r"the other end": "the peer, the broker, the hub",
    r"(?:is|are|was|were) told": "logs, reports, raises; or name the call",
    r"is no more": "is deleted, has ended",
    r"as it makes sense": "automatically",
    r"stands? without one": "without a port",
    r"one (?:time )?behind the other": "consecutive, in order",
    r"to its end": "completely",
    r"the way (?:in|out)": "receive path, send path",
    r"put together": "reassembled",
    r"what is missing": "gaps, missing ranges",
    r"landed": "recorded, captured",
    r"whoever|who knows|who serves|who publishes": "name the actor",
    r"nobody|somebody|anybody|everybody|everyone": "name the actor",
    r"what of|as of": "name the object",
    r"comes? about": "happens, completes",
    r"in vain": "failed",
    r"by chance": "random",
    r"of ours": "name the owner",
    r"anew": "again, re-",
    r"at hand": "current",
    r"under way": "in progress, in flight",
    r"so many": "this number of",
    r"behind": "after, before; or name the relation",
    r"how often": "the number of, the rate of",
}
_PHRASE = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in BANNED), re.IGNORECASE)
#: A docstring names its subject, or begins with a verb.
_OPENING = re.compile(r"(?:As|What|Whether|There|Who|How|Where|Whose|Of)\b")
#: Code in a text.
_CODE = re.compile(r"``[^`]*``|`[^`]*`")


def _texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of each docstring (True) and each block of comment lines (False)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text, True
    last, block = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            is_alone = token.line.lstrip().startswith("#")
            if block and (line != last + 1 or not is_alone):
                yield last, block, False
                block = ""
            last, block = line, f"{block} {token.string.lstrip('#: ')}"
    if block:
        yield last, block, False


def findings(source: str) -> list[tuple[int, str]]:
    """Return line and phrase of each banned phrase, and of each docstring with a banned opening."""
    found = []
    for line, text, is_docstring in _texts(source):
        plain = " ".join(_CODE.sub("", text).split())
        found += [(line, match.group()) for match in _PHRASE.finditer(plain)]
        opening = _OPENING.match(text) if is_docstring else None
        if opening is not None:
            found.append((line, f"docstring opens with {opening.group()!r}"))
    return found


def test_no_banned_phrase_in_docstrings_and_comments() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {phrase}"
        for folder in ("sdk", "ports")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, phrase in findings(path.read_text())
    ]
    assert not bad, "\n".join(bad)


def test_the_check_finds_docstrings_and_comments() -> None:
    source = '"""As ``f``."""\n\n# It is sent\n# again.\nx = "sent again"  # behind `nobody`\n'
    assert findings(source) == [(1, "docstring opens with 'As'"), (4, "sent again"), (5, "behind")]
