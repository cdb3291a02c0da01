"""The pauses of the host's reconnect policy: how they grow, when they start again, and what ends them."""

from collections.abc import Callable

import pytest

from headwater_host.client.reconnect import Pauses, Reconnect
from headwater_host.errors import ArgumentError, ClientError, ConnectRefusedError, NotConnectedError
from tests.rows import each_row

#: The longest of so many random pauses is above half of their limit, but for one run in 2**64.
DRAWS = 64
LOST = NotConnectedError("the server closed the connection")
#: 5 of MQTT 3.1.1: not authorized.
REFUSED = ConnectRefusedError(5)
#: 3 of MQTT 3.1.1: server unavailable, which may pass.
UNAVAILABLE = ConnectRefusedError(3)
POLICY = Reconnect(first=1.0, longest=8.0, refused=300.0)


def longest(step: Callable[[Pauses], float], before: int = 0) -> float:
    """Return the longest pause that ``step`` leads to after ``before`` failed rounds."""
    pauses = []
    for _ in range(DRAWS):
        one = Pauses(POLICY)
        for _ in range(before):
            one.failed(LOST)
        pauses.append(step(one))
    assert min(pauses) >= 0
    return max(pauses)


@each_row("failures, limit", [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 8.0), (40, 8.0)])
def test_the_limit_of_a_pause_doubles_with_each_failure_up_to_the_longest(
    failures: int, limit: float
) -> None:
    assert limit / 2 < longest(lambda one: one.failed(LOST), failures) <= limit


@each_row("lasted, limit", [(7.9, 8.0), (8.0, 1.0)])
def test_a_connection_that_lasted_resets_the_limit(lasted: float, limit: float) -> None:
    assert limit / 2 < longest(lambda one: one.lost(LOST, lasted), 5) <= limit


@each_row("error, limit", [(REFUSED, 300.0), (UNAVAILABLE, 1.0)])
def test_a_refusal_has_a_limit_of_its_own_unless_it_may_pass(error: ClientError, limit: float) -> None:
    assert limit / 2 < longest(lambda one: one.failed(error)) <= limit


def test_a_policy_gives_up_after_its_attempts_in_a_row() -> None:
    pauses = Pauses(Reconnect(attempts=2))
    pauses.failed(LOST)
    pauses.connected()
    pauses.failed(LOST)
    with pytest.raises(NotConnectedError):
        pauses.failed(LOST)


@each_row("error", [ArgumentError("wrong"), REFUSED])
def test_what_no_attempt_can_change_is_raised(error: ClientError) -> None:
    with pytest.raises(type(error)):
        Pauses(Reconnect(refused=None)).failed(error)
