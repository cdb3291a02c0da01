"""Targets: what a client's text makes the hub do, against a reference that does it in another way."""

from decimal import Decimal

from headwater_host.hub.conditions import Condition, ConditionError
from tests.fuzz import condition_reference as reference

MESSAGES: tuple[tuple[str, frozenset[str], dict[str, object]], ...] = (
    ("a/b", frozenset(), {}),
    ("x", frozenset(("a", "b")), {"a": 1, "b": True, "c": "a"}),
    ("x", frozenset("c"), {"a": Decimal("0.1"), "b": 0.1, "c": float("nan"), "d": None}),
    ("$dead/x", frozenset(("topic", "é")), {"a": -(10**30), "b": float("inf"), "c": "b\\", "topic": 1}),
)


def condition(data: bytes) -> None:
    """A condition in UTF-8; what is no UTF-8 is replaced."""
    source = data.decode(errors="replace")
    ours, column = None, 0
    try:
        ours = Condition(source)
    except ConditionError as error:
        column = error.column
    if ours is None:
        assert 1 <= column <= len(source) + 1
        assert not _accepts(source), "refused, and the reference finds nothing wrong"
        return
    for n, (topic, tags, payload) in enumerate(MESSAGES):
        assert ours(topic, tags, payload.get) == reference.check(source, *_plain(n))


def _accepts(source: str) -> bool:
    try:
        reference.check(source, *_plain(0))
    except reference.BadConditionError:
        return False
    return True


def _plain(n: int) -> tuple[str, set[str], dict[str, object]]:
    topic, tags, payload = MESSAGES[n]
    return topic, set(tags), dict(payload)
