"""When a lost connection is tried again, and when not any more: the policy of ``headwater.mqtt.keeper``, for a host."""

import random
from dataclasses import dataclass

from headwater.mqtt.keeper import PASSING
from headwater_host.arguments import check_seconds, check_whole
from headwater_host.errors import ArgumentError, ClientError, ConnectRefusedError, SubscribeError


@dataclass(frozen=True)
class Reconnect:
    """How a client keeps its connection; times are in seconds.

    A round tries each server once, without a pause between them. After a round in vain, or a connection that was lost,
    comes a pause of random length (full jitter) below a limit, which doubles from ``first`` to ``longest`` and starts
    again from ``first`` once a connection has lasted ``longest``.

    ``refused``: when every server of a round has refused us for good (identifier, credentials, rights, a subscription),
    the limit of the pause is this; None gives up. ``attempts`` is after how many rounds in vain, one behind the other,
    it gives up; None: never. ``at_start``: the first connection is tried again as well; otherwise its error is raised.

    ``answer``: a connection over which the oldest message under way is unanswered for so long counts as lost.
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
    """The policy that a client is given by its argument. Raises ArgumentError."""
    if reconnect is None or isinstance(reconnect, bool):
        return Reconnect() if reconnect else None
    if not isinstance(reconnect, Reconnect):
        raise ArgumentError(f"reconnect={reconnect!r}: True, or a Reconnect such as Reconnect(attempts=5)")
    return reconnect


class Pauses:
    """The policy at work: how long to wait after what went wrong."""

    def __init__(self, policy: Reconnect):
        self._policy = policy
        self._failures = 0
        self._in_vain = 0

    def connected(self) -> None:
        """A round has led to a connection."""
        self._in_vain = 0

    def lost(self, error: ClientError, lasted: float) -> float:
        """A connection is lost that has lasted so long: seconds to wait. Raises ``error`` to give up."""
        if lasted >= self._policy.longest:
            self._failures = 0
        return self._next(error)

    def in_vain(self, error: ClientError) -> float:
        """A round was in vain: as ``lost``."""
        self._in_vain += 1
        return self._next(error)

    def _next(self, error: ClientError) -> float:
        policy = self._policy
        if isinstance(error, ArgumentError) or self._in_vain == policy.attempts:
            raise error
        if is_refusal(error):
            if policy.refused is None:
                raise error
            return random.uniform(0, policy.refused)
        limit: float = min(policy.longest, policy.first * 2 ** min(self._failures, 64))
        self._failures += 1
        return random.uniform(0, limit)


def is_refusal(error: ClientError) -> bool:
    """Whether the server has refused us for good: the same again would be refused again."""
    if isinstance(error, ConnectRefusedError):
        return error.return_code not in PASSING
    return isinstance(error, SubscribeError)
