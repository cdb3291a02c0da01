"""Update images and their sending, without a board: what is refused before it is signed, and any report of a board."""

import hashlib
import hmac
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.board.image import HEAD, ID, make_image, read_files, read_key
from headwater_host.board.update import CHECKING, READY, RECEIVING, RUNNING, Transfer, UpdateError
from headwater_host.exits import CommandError

KEY = bytes(range(32))
FILES = {"app.py": b"print(1)\n", "lib/a.py": bytes(3000)}
IMAGE = make_image(FILES, KEY, "shed", "1.2", 7)


def report(**values: object) -> bytes:
    return json.dumps({"id": IMAGE[ID].hex(), **values}).encode()


def test_an_image() -> None:
    size = int.from_bytes(IMAGE[4:6], "big")
    manifest = IMAGE[HEAD : HEAD + size]
    assert IMAGE[6:38] == hmac.new(KEY, IMAGE[:6] + manifest, hashlib.sha256).digest()
    assert json.loads(manifest) == {
        "format": 1,
        "target": "shed",
        "version": "1.2",
        "serial": 7,
        "files": [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in FILES.items()],
    }
    assert IMAGE[HEAD + size :] == b"".join(FILES.values())


@pytest.mark.parametrize(
    "name", ["/a", "a//b", "../a", "a/./b", "", "a/", "a\\b", "a\nb", "x" * 97, "update.hwu", "firmware.at"]
)
def test_names_that_boards_refuse(name: str) -> None:
    with pytest.raises(CommandError, match="file name"):
        make_image({name: b""}, KEY, "shed", "1", 1)


def test_a_file_that_is_a_folder_as_well() -> None:
    with pytest.raises(CommandError, match="a file has the name of its folder"):
        make_image({"a": b"", "a/b": b""}, KEY, "shed", "1", 1)


@pytest.mark.parametrize("version", ["", "1.x", "v1", "1..2", "1.2.3.4.5", "-1", "1.2 "])
def test_wrong_versions(version: str) -> None:
    with pytest.raises(CommandError, match="numbers separated by dots"):
        make_image(FILES, KEY, "shed", version, 1)


def test_too_large() -> None:
    with pytest.raises(CommandError, match="boards accept 8192: bundle modules"):
        make_image({f"{n:096}": b"" for n in range(60)}, KEY, "shed", "1", 1)
    with pytest.raises(CommandError, match="the image has"):
        make_image({"a": bytes(1 << 24)}, KEY, "shed", "1", 1)
    with pytest.raises(CommandError, match="no ESP32 application image"):
        make_image(FILES, KEY, "shed", "1", 1, firmware=b"MZ")


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for content, key in ((KEY.hex().encode() + b"\r\n", KEY), (b"\xff" * 20, b"\xff" * 20), (KEY, KEY)):
        path.write_bytes(content)
        assert read_key(path) == key
    path.write_text("secret")
    with pytest.raises(CommandError, match="has 6 bytes; at least 16 are needed: openssl rand -hex 32"):
        read_key(path)
    with pytest.raises(CommandError, match="cannot read the key"):
        read_key(tmp_path / "none")


def test_files(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="has no files"):
        read_files(tmp_path)
    for name in ("app.py", "lib/a.py", "__pycache__/app.pyc", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read_files(tmp_path) == {"app.py": b"app.py", "lib/a.py": b"lib/a.py"}


def test_a_transfer_in_steps() -> None:
    transfer = Transfer(IMAGE, window=2)
    assert transfer.pieces() == [IMAGE[ID] + b"\1\0\0\0" + IMAGE[:HEAD]]
    body = len(IMAGE) - sum(map(len, FILES.values()))
    seen = bytearray(IMAGE[:HEAD])
    while len(seen) < len(IMAGE):
        due = transfer.report(report(state="receiving", size=len(IMAGE), piece=200, next=len(seen)))
        assert due
        assert transfer.state == RECEIVING
        pieces = transfer.pieces()
        assert len(pieces) <= 2
        assert [piece[8] for piece in pieces] == [0] * (len(pieces) - 1) + [1]
        before = len(seen)
        for piece in pieces:
            assert int.from_bytes(piece[9:12], "big") == len(seen)
            assert len(piece) <= 212
            seen += piece[12:]
        assert before >= body or len(seen) <= body, "the files begin in a piece of their own"
    assert seen == IMAGE
    assert not transfer.report(report(state="receiving", size=len(IMAGE), piece=200, next=len(seen)))
    assert transfer.state == CHECKING
    assert not transfer.report(report(state="ready", version="1.2"))
    assert not transfer.report(report(state="receiving", size=len(IMAGE), piece=200, next=len(seen)))
    assert transfer.state == READY, "the progress is reported at QoS 0, after the result"
    # The old version, before the restart: nothing is sent again.
    assert not transfer.report(b'{"state": "running", "id": "", "version": "1", "trial": false}')
    assert not transfer.report(report(state="running", version="1.2", trial=False))
    assert transfer.state == RUNNING


def test_a_stale_report_sends_nothing() -> None:
    transfer = Transfer(IMAGE)
    first = report(state="receiving", size=len(IMAGE), piece=200, next=0)
    assert transfer.report(first)
    transfer.pieces()
    assert not transfer.report(first)
    transfer.repeat()
    assert len(transfer.pieces()) == 1, "after a silence the board is asked where it is"
    assert transfer.report(first)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
STATES = st.sampled_from(["receiving", "refused", "failed", "ready", "running"])
NUMBERS = st.integers() | st.integers(-1, len(IMAGE) + 1) | JSON
REPORTS = st.binary() | JSON.map(lambda value: json.dumps(value).encode()) | st.builds(
    lambda values, ours: json.dumps(values | ({"id": IMAGE[ID].hex()} if ours else {})).encode(),
    st.fixed_dictionaries(
        {"state": STATES | JSON, "id": JSON},
        optional={"next": NUMBERS, "piece": NUMBERS, "trial": JSON, "failed": JSON, "why": JSON, "version": JSON},
    ),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(REPORTS, max_size=12))
def test_any_report(reports: list[bytes]) -> None:
    transfer = Transfer(IMAGE)
    for payload in reports:
        try:
            due = transfer.report(payload)
        except UpdateError:
            return
        if due:
            for piece in transfer.pieces():
                at = int.from_bytes(piece[9:12], "big")
                assert piece[:8] == IMAGE[ID]
                assert piece[12:] == IMAGE[at : at + len(piece) - 12]
