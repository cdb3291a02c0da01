"""Conditions: what they mean, where they are wrong, and that nobody can make them expensive."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.hub.conditions import DEEPEST, LONGEST, Condition, ConditionError, Selection
from headwater_host.hub.storage import Message
from tests.fuzz import condition_reference as reference
from tests.rows import each_row


def holds(source: str, topic: str = "a/b", tags: tuple[str, ...] = (), **payload: Any) -> bool:
    return Condition(source)(topic, frozenset(tags), payload.get)


@each_row(
    "source, tags, answer",
    [
        ("", "", True),
        ("  ", "", True),
        ("x", "x", True),
        ("x", "y", False),
        ("!x", "y", True),
        ("!!!x", "", True),
        ("x || y && z", "x", True),
        ("(x || y) && z", "x", False),
        ("!x && y", "y", True),
        ("!(x && y)", "xy", False),
        ("x||y||z", "z", True),
    ],
)
def test_tags(source: str, tags: str, answer: bool) -> None:
    assert holds(source, tags=tuple(tags)) is answer


@each_row(
    "wanted, tags, answer",
    [
        ("", "", True),
        ("", "x", True),
        ("x", "", False),
        ("x", "xy", True),
        ("xy", "x", False),
        ("xy", "yx", True),
        ("xy", "yzx", True),
        ("xy", "z", False),
    ],
)
def test_a_subscription_gets_messages_that_have_all_of_its_tags(wanted: str, tags: str, answer: bool) -> None:
    message = Message(1, b"id", "a/b", 0, tuple(tags), b"", 0, False, 0)
    assert Selection(tuple(wanted), "").takes(message) is answer


@each_row(
    "source, value, answer",
    [
        ("v == 1", 1, True),
        ("v == 1", 1.0, True),
        ("v == 1.0", 1, True),
        ("v == 0.1", Decimal("0.1"), True),
        ("v == 0.1", Decimal("0.10"), True),
        # The float nearest to 0.1 is a little more than 0.1.
        ("v == 0.1", 0.1, False),
        ("v > 0.1", 0.1, True),
        ("v == 9007199254740993", 9007199254740992.0, False),
        ("v < 9007199254740993", 9007199254740992, True),
        ("v == 9007199254740993", 9007199254740993, True),
        ("v > 18446744073709551616", 2**64 + 1, True),
        (f"v == {10**300}", 10**300, True),
        (f"v == {10**300}.0", 10**300, True),
        ("v > 5.5", float("inf"), True),
        ("v < 5", float("-inf"), True),
        ("v < 5.5", float("nan"), False),
        ("v != 5.5", float("nan"), True),
        ("v == 5.5", float("nan"), False),
        ("v >= -12.5", Decimal("-12.5"), True),
        ("v == true", True, True),
        ("v != true", False, True),
        ("v == 'x'", "x", True),
        ("v < 'b'", "a", True),
        (r"v == 'it\'s'", "it's", True),
        (r'v == "a\\b"', "a\\b", True),
        # Of another type: false, whatever the operator.
        ("v == 1", True, False),
        ("v != 1", True, False),
        ("v == true", 1, False),
        ("v != 'x'", 1, False),
        ("v != 1", "1", False),
        ("v != 1", None, False),
        ("v != 1", [1], False),
        ("!(v == 1)", None, True),
    ],
)
def test_comparisons(source: str, value: object, answer: bool) -> None:
    assert holds(source, v=value) is answer


def test_an_integer_of_megabytes_is_compared_at_once() -> None:
    """Made a decimal, it would keep the hub busy for hours: this ends, or the test's own time does."""
    huge = 1 << 80_000_000
    assert holds("v >= 5.5 && v != 5.5 && !(v == 5.5)", v=huge)
    assert holds("v < 5 && v < 5.5", v=-huge)
    assert holds(f"v > {'9' * 4000}.5", v=huge)


def test_the_topic_is_the_messages_and_not_a_key() -> None:
    assert Condition("topic == 'a/b'")("a/b", (), {"topic": "c"}.get)


@each_row(
    "source, column, says",
    [
        ("a &&", 5, "not the end"),
        ("a & b", 3, "'&' must be doubled"),
        ("a = 1", 3, "'=' must be doubled"),
        ("a && && b", 6, "not '&&'"),
        ("(a", 3, "')' belongs here, not the end"),
        ("(a))", 4, "not ')'"),
        ("a b", 3, "&&, || or the end belongs here, not 'b'"),
        ("a == ", 6, "a number, a text in quotes, true or false belongs here"),
        ("a == b", 6, "not 'b'"),
        ("a == 'b", 6, "has no closing quote"),
        (r"a == 'b\n'", 6, "has no closing quote, or a \\"),
        ("a == 1e5", 6, "not a number"),
        ("a == 1.", 6, "not a number"),
        ("a == -", 6, "not a number"),
        ("a < true", 5, "compared with == or !="),
        ("true", 1, "not 'true'"),
        ("5 == a", 1, "not '5'"),
        ("a; b", 2, "';' has no meaning"),
        ("é && ;", 6, "';'"),
        ("()", 2, "not ')'"),
    ],
)
def test_a_mistake_has_its_column(source: str, column: int, says: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition(source)
    assert caught.value.column == column
    assert caught.value.reason == 0x8F
    assert str(caught.value).startswith(f"column {column}: ")
    assert says in str(caught.value)


def test_depth_and_length_are_bounded() -> None:
    deepest = "(" * DEEPEST + "a" + ")" * DEEPEST
    assert holds(deepest, tags=("a",))
    with pytest.raises(ConditionError, match="at most 32 levels") as caught:
        Condition(f"({deepest})")
    assert caught.value.column == DEEPEST + 1
    with pytest.raises(ConditionError, match="at most 4096 characters"):
        Condition(" " * (LONGEST + 1))
    Condition(" " * LONGEST)


def counting(source: str) -> int:
    """How often the payload is looked into."""
    looks = []
    Condition(source)("", (), lambda name: looks.append(name))
    return len(looks)


@each_row(
    "bomb",
    [
        "(" * LONGEST,
        "!" * (LONGEST - 1) + "a",
        "!(" * 32 + "a==1" + ")" * 32,
        "||".join(["a==1"] * 600),
        "&&".join(["!(a==1||b==2)"] * 270),
        "(((a==1||b==1)&&(a==1||b==1))||((a==1||b==1)&&(a==1||b==1)))" * 1 + "||a==1" * 500,
        "a == " + "9" * (LONGEST - 5),
        "a == '" + "\\\\" * 2000,
        '"' * LONGEST,
    ],
)
def test_a_bomb_does_nothing(bomb: str) -> None:
    """No recursion error; and each operand is asked for at most once, so the time is in proportion."""
    assert len(bomb) <= LONGEST
    try:
        looks = counting(bomb)
    except ConditionError:
        return
    assert looks <= bomb.count("==")


_names = st.sampled_from(["a", "b", "c", "topic", "a.b"])
_numbers = st.one_of(
    st.integers(-(10**25), 10**25).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9).map(
        str
    ),
    st.sampled_from(["0", "1", "0.1", "-0.5"]),
)
_texts = st.text("ab'\"\\/ é", max_size=4).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
)
_comparisons = st.one_of(
    st.builds(
        "{} {} {}".format, _names, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), _numbers | _texts
    ),
    st.builds("{}{}{}".format, _names, st.sampled_from(["==", "!="]), st.sampled_from(["true", "false"])),
)
_conditions = st.recursive(
    _names | _comparisons,
    lambda inner: st.one_of(
        st.builds("({})".format, inner),
        st.builds("!{}".format, inner.map("({})".format)),
        st.builds("{} && {}".format, inner, inner),
        st.builds("{}||{}".format, inner, inner),
    ),
    max_leaves=12,
)
_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(allow_nan=False, places=3),
    st.sampled_from([0, 1, 0.1, Decimal("0.1"), "a", "b"]),
    st.text("ab'\"\\/ é", max_size=4),
)


@settings(deadline=None)
@given(_conditions, st.sets(_names), st.dictionaries(_names, _values), st.sampled_from(["a", "a/b", "é"]))
def test_it_means_what_the_reference_says(
    source: str, tags: set[str], payload: dict[str, Any], topic: str
) -> None:
    assert Condition(source)(topic, tags, payload.get) == reference.check(source, topic, tags, payload)
