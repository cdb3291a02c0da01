"""`docs/README.md` lists every page once, and every relative link of the documentation leads somewhere."""

import re
from pathlib import Path

from tests.rows import each_row
from tools.toolchain import ROOT

DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_the_index_lists_every_page_once() -> None:
    listed = [link for link in LINK.findall(INDEX.read_text(encoding="utf-8")) if not link.startswith("..")]
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES if page != INDEX)


@each_row("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


NAMED = re.compile(r"`((?:sdk|ports|tests|tools|examples|docs)/[\w./-]*\w)(?:::\w+)?`")


@each_row("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_paths_exist(page: Path) -> None:
    names = NAMED.findall(without_code(page.read_text(encoding="utf-8")))
    assert sorted({name for name in names if not (ROOT / name).exists()}) == []


PACKAGES = {
    "headwater": "sdk",
    "headwater_board": "ports/micropython",
    "headwater_host": "ports/cpython",
    "headwater_mq": "ports/cpython",
    "headwater_spark": "ports/spark",
}


def module_exists(dotted: str) -> bool:
    """Whether the name is a module, or lies in one whose text contains its last parts."""
    parts = dotted.split(".")
    path = ROOT / PACKAGES[parts[0]]
    for number, part in enumerate(parts):
        file = path / f"{part}.py"
        if file.exists() or not (path / part).is_dir():
            text = (file if file.exists() else path / "__init__.py").read_text(encoding="utf-8")
            rest = parts[number + 1 :] if file.exists() else parts[number:]
            return all(re.search(rf"\b{name}\b", text) for name in rest)
        path /= part
    return True


@each_row("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_modules_exist(page: Path) -> None:
    names = re.findall(rf"\b(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+", page.read_text(encoding="utf-8"))
    # File names of other kinds (systemd units, configurations) and formats of Spark are not modules.
    kinds = {"service", "toml", "db", "local", "md", "py", "json", "boot", "slot", "table", "hub"}
    assert (
        sorted({name for name in names if name.rsplit(".")[-1] not in kinds and not module_exists(name)})
        == []
    )


def test_changes_name_existing_files_and_tests() -> None:
    """Each entry of "Where to change what" names files by their whole paths, and tests among them."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## Where to change what\n")[2].partition("\n## ")[0]
    entries = re.split(r"^\*\*(.+)\*\*$", section, flags=re.MULTILINE)[1:]
    assert len(entries) >= 12
    for heading, text in zip(entries[::2], entries[1::2], strict=True):
        code, _, tests = text.partition("\n- Tests:")
        for part in (code, tests):
            paths = re.findall(r"`([\w./-]+\.(?:py|json|md|toml))`", part)
            assert paths, heading
            assert [path for path in paths if not (ROOT / path).is_file()] == [], heading
        assert all(path.startswith("tests/") for path in re.findall(r"`([\w./-]+)`", tests)), heading


def test_the_changelog_names_existing_modules() -> None:
    """In the table of moved import paths, each new path exists."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    table = text.partition("### Moved import paths\n")[2].partition("\n### ")[0]
    new = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("| ")]
    names = re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)", " ".join(new))
    assert len(names) > 80
    assert sorted({name for name in names if not name.endswith(".NAME") and not module_exists(name)}) == []
