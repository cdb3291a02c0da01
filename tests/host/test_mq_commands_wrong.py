"""``headwater mq`` with what is wrong: one line says so, and nothing has changed."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.host.mq_run import GROUP, Run
from tests.rows import each_row


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With a message that stays."""
    made = Run(tmp_path_factory.mktemp("kept"))
    made.ok("put", "-m", "there")
    return made


@each_row(
    "words, code, says",
    [
        (["put", "-m", "x", "--seq", "0", "--flags", "MSG_IN_GROUP"], 1, "MQRC_MSG_SEQ_NUMBER_ERROR (2250)"),
        (["put", "-m", "x", "--offset", "-1", "--flags", "SEGMENT"], 1, "MQRC_OFFSET_ERROR (2251)"),
        (["put", "-n", "--flags", "SEGMENT"], 1, "MQRC_SEGMENT_LENGTH_ZERO (2253)"),
        (["put", "-m", "no", "--format", "MQHMDE", "--ccsid", "819"], 1, "MQRC_MDE_ERROR (2248)"),
        (["put", "-m", "x", "--queue", "OTHER"], 1, "MQRC_UNKNOWN_OBJECT_NAME (2085): OTHER is not defined"),
        (["get", "--queue", "OTHER"], 1, "MQRC_UNKNOWN_OBJECT_NAME (2085)"),
        (["stats", "--queue", "OTHER"], 1, "MQRC_UNKNOWN_OBJECT_NAME (2085)"),
        (["put"], 2, "one of the arguments -m/--message"),
        (["put", "-m", "x", "-n"], 2, "not allowed with argument"),
        (["put", "-m", "x", "--queue", "a b"], 2, "'a b' is not 1 to 48 of"),
        (["put", "-m", "x", "--group", "00"], 2, "'00' is not 24 bytes in hexadecimal"),
        (["put", "-m", "x", "--flags", "LAST"], 2, "'LAST' is not a flag: SEGMENTATION_ALLOWED"),
        (["put", "-m", "x", "--format", "ninechars"], 2, "'ninechars' is not a Format: at most 8 characters"),
        (["put", "-m", "x", "--format", "\u00e9"], 2, "'\u00e9' is not a Format"),
        (
            ["put", "-m", "x", "--seq", "4294967296"],
            2,
            "is not a whole number from -2147483648 to 2147483647",
        ),
        (["put", "-m", "x", "--segment-size", "0"], 2, "'0' is not a whole number from 1"),
        (["put", "-m", "x", "--as-group"], 2, "--as-group is for -l"),
        (["put", "-l", "--group", GROUP], 2, "--group with -l needs --as-group"),
        (["put", "-m", "x", "--md-version", "1", "--seq", "2"], 2, "need --md-version 2"),
        (["put", "-m", "x", "--priority", "10"], 2, "'10' is not a whole number from 0 to 9"),
        (["put", "-f", "/no/file"], 2, "cannot open /no/file: No such file"),
        (["get", "-C", "1", "--all"], 2, "-C or --all, not both"),
        (["get", "-F", "%z"], 2, "'%z' is not a sequence"),
        (["get", "-W", "0"], 2, "'0' is not a number of seconds above 0"),
        (["peek"], 2, "there is no command 'peek'"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    kept: Run, words: list[str], code: int, says: str
) -> None:
    kept(words[0], *words[1:])
    assert (kept.code, kept.out, kept.err.count("\n")) == (code, b"", 1)
    assert kept.err.startswith("headwater")
    assert says in kept.err
    assert kept.ok("browse") == b"there\n"


def test_files_that_are_none(mq: Run) -> None:
    for name in ("get", "browse", "stats"):
        mq(name)
        assert (mq.code, f"{mq.store} does not exist" in mq.err) == (1, True)
    mq("put", "-f", "/no/file")
    assert not mq.store.exists()
    folder = mq.store.parent / "no"
    mq("put", "-m", "x", "--store", folder / "q.db")
    assert (
        mq.code,
        mq.err.count("\n"),
        f"q.db cannot be opened: there is no folder {folder}\n" in mq.err,
    ) == (1, 1, True)
    mq.store.write_bytes(b"something else altogether" * 100)
    mq("put", "-m", "x")
    assert (mq.code, mq.err.count("\n"), "(2059)" in mq.err) == (1, 1, True)
    assert mq.store.read_bytes() == b"something else altogether" * 100


def test_a_queue_that_is_full(mq: Run) -> None:
    mq("put", "-l", "--max-depth", 2, data=b"a\nb\nc\n")
    assert (mq.code, mq.err.count("\n"), "MQRC_Q_FULL (2053)" in mq.err) == (1, 1, True)
    assert mq.ok("browse") == b"a\nb\n"
    # It is made once.
    mq("put", "-m", "c", "--define", "--max-depth", 9)
    assert mq.code == 1


def test_a_message_that_is_too_large(mq: Run) -> None:
    mq("put", "-s", data=bytes((4 << 20) + 1))
    assert (mq.code, mq.err.count("\n")) == (1, 1)
    assert re.search(r"MQRC_MSG_TOO_BIG_FOR_Q \(2030\)|MQRC_MSG_TOO_BIG_FOR_Q_MGR \(2031\)", mq.err)
    mq.ok("put", "-s", "--segment-size", 1 << 20, data=bytes((4 << 20) + 1))
    assert len(mq.fields()) == 5


_VALUES = st.sampled_from(
    ["0", "1", "-1", "x", "", GROUP, "999999999", "1e9", "SEGMENT", "LAST_SEGMENT", "\u00e9", "MQHMDE"]
)
_WORDS = st.one_of(
    st.sampled_from(["-l", "-n", "--as-group", "--json", "--define", "--complete", "--all", "-N", "-v"]).map(
        lambda o: [o]
    ),
    st.tuples(
        st.sampled_from(
            [
                *("-m", "--group", "--seq", "--offset", "--flags", "--format", "--ccsid", "--encoding"),
                *("--priority", "--expiry", "--correl-id", "--segment-size", "--md-version"),
                *("-C", "-F", "--msg-id"),
            ]
        ),
        _VALUES,
    ).map(lambda pair: [f"{pair[0]}={pair[1]}"] if pair[0].startswith("--") else [pair[0] + pair[1]]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["put", "get", "browse", "stats"]), st.lists(_WORDS, max_size=5), st.binary(max_size=90)
)
def test_any_options_end_with_a_code_and_a_line_at_most(
    mq: Run, name: str, words: list[list[str]], data: bytes
) -> None:
    mq(name, *(word for pair in words for word in pair), data=data)
    assert mq.code in (0, 1, 2, 4)
    assert mq.err.count("\n") == (1 if mq.code else 0)
