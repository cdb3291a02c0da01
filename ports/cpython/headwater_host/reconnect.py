"""When a lost connection is tried again, and when not any more: the policy of ``headwater.keeper``, for a host."""

import random
from dataclasses import dataclass

from headwater.keeper import PASSING
from headwater_host.errors import MqttArgumentError, MqttError, MqttRefusedError, MqttSubscribeError


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
        if not 0 < self.first <= self.longest < 1e9 or not self.answer > 0:
            raise MqttArgumentError("0 < first <= longest, and answer is a number of seconds above 0")
        if (self.refused is not None and not 0 <= self.refused < 1e9) or (self.attempts or 0) < 0:
            raise MqttArgumentError("refused and attempts are not negative")


class Pauses:
    """The policy at work: how long to wait after what went wrong."""

    def __init__(self, policy: Reconnect):
        self._policy = policy
        self._failures = 0
        self._in_vain = 0

    def connected(self) -> None:
        """A round has led to a connection."""
        self._in_vain = 0

    def lost(self, error: MqttError, lasted: float) -> float:
        """A connection is lost that has lasted so long: seconds to wait. Raises ``error`` to give up."""
        if lasted >= self._policy.longest:
            self._failures = 0
        return self._next(error)

    def in_vain(self, error: MqttError) -> float:
        """A round was in vain: as ``lost``."""
        self._in_vain += 1
        return self._next(error)

    def _next(self, error: MqttError) -> float:
        policy = self._policy
        if isinstance(error, MqttArgumentError) or self._in_vain == policy.attempts:
            raise error
        if is_refusal(error):
            if policy.refused is None:
                raise error
            return random.uniform(0, policy.refused)
        limit: float = min(policy.longest, policy.first * 2 ** min(self._failures, 64))
        self._failures += 1
        return random.uniform(0, limit)


def is_refusal(error: MqttError) -> bool:
    """Whether the server has refused us for good: the same again would be refused again."""
    if isinstance(error, MqttRefusedError):
        return error.return_code not in PASSING
    return isinstance(error, MqttSubscribeError)
