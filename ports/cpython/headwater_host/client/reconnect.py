"""The reconnect policy of the host's clients."""

import random
from dataclasses import dataclass

from headwater.reconnect import PASSING, pause_limit
from headwater_host.arguments import check_seconds, check_whole
from headwater_host.errors import ArgumentError, ClientError, ConnectRefusedError, SubscribeError


@dataclass(frozen=True)
class Reconnect:
    """When a client reconnects; times are in seconds.

    A round tries each server once, without a pause between them. After a failed round or a lost connection the client
    pauses for a random time (full jitter) below a limit.

    - ``first``: the limit of the first pause; it doubles with each failure.
    - ``longest``: the largest limit; a connection that has lasted this long resets it to ``first``.
    - ``refused``: the limit when every server of a round has refused the client for good (identifier, credentials,
      rights, a subscription); None to give up.
    - ``attempts``: give up after this many failed rounds in a row; None for never.
    - ``at_start``: True to retry the first connection as well; otherwise its error is raised.
    - ``answer``: a connection counts as lost when its oldest message in flight is unacknowledged for this long.
    """

    first: float = 1.0
    longest: float = 60.0
    refused: float | None = 300.0
    attempts: int | None = None
    at_start: bool = False
    answer: float = 30.0

    def __post_init__(self) -> None:
        for name in ("first", "longest", "answer"):
            check_seconds(name, getattr(self, name))
        if self.first > self.longest:
            raise ArgumentError(f"first={self.first!r}: at most longest, {self.longest!r}")
        if self.refused:
            check_seconds("refused", self.refused)
        if self.attempts is not None:
            check_whole("attempts", self.attempts, 0, 1 << 62)


def policy_of(reconnect: object) -> Reconnect | None:
    """Return the policy for a client's argument ``reconnect``. Raises ArgumentError."""
    if reconnect is None or isinstance(reconnect, bool):
        return Reconnect() if reconnect else None
    if not isinstance(reconnect, Reconnect):
        raise ArgumentError(f"reconnect={reconnect!r}: True, or a Reconnect such as Reconnect(attempts=5)")
    return reconnect


class Pauses:
    """Apply a policy: compute each pause, and decide when to give up."""

    def __init__(self, policy: Reconnect):
        self._policy = policy
        self._failures = 0
        self._failed_rounds = 0

    def connected(self) -> None:
        """Record a successful round."""
        self._failed_rounds = 0

    def lost(self, error: ClientError, lasted: float) -> float:
        """Return the seconds to wait after a connection of ``lasted`` seconds. Raises ``error`` to give up."""
        if lasted >= self._policy.longest:
            self._failures = 0
        return self._next(error)

    def failed(self, error: ClientError) -> float:
        """Return the seconds to wait after a failed round. Raises ``error`` to give up."""
        self._failed_rounds += 1
        return self._next(error)

    def _next(self, error: ClientError) -> float:
        policy = self._policy
        if isinstance(error, ArgumentError) or self._failed_rounds == policy.attempts:
            raise error
        if is_refusal(error):
            if policy.refused is None:
                raise error
            return random.uniform(0, policy.refused)
        limit: float = pause_limit(self._failures, policy.first, policy.longest)
        self._failures += 1
        return random.uniform(0, limit)


def is_refusal(error: ClientError) -> bool:
    """Return whether the server would refuse the same attempt again."""
    if isinstance(error, ConnectRefusedError):
        return error.return_code not in PASSING
    return isinstance(error, SubscribeError)
