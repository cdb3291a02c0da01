"""Access rules (FMQ, section 4): the first rule that matches decides.

A rule names types of requests, topics and users, and the networks from which they are denied or allowed; for other
networks the next rule decides. If a request names a filter (SUBSCRIBE), a rule denies it when it denies any topic of
the filter, and allows it only when it allows all of them: ``#`` does not get around ``secret/#``.

The rules of a topic hold for what the hub derives from it: its dead letters (``$dead/TOPIC``) and its calls
(``$rpc/TOPIC``). A rule that names a derived topic takes precedence over those of the topic it is derived from.

When no rule decides, users who have logged in are allowed; on a hub that only this machine can reach, all users are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from headwater.mqtt import spec5
from headwater_host.hub.errors import RefusedError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: The requests that are checked. AUTH is always allowed; an answer needs no rule of its own.
TYPES = ("SLAVEOF", "REGISTER", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "CONSUME", "ELECT", "UNREGISTER")
#: All networks.
ANY = (ip_network("0.0.0.0/0"), ip_network("::/0"))
#: "#" also matches the level above, which would be an empty topic here; there is none.
_SAME = {"#": "+/#", "/#": "/+/#"}
#: Prefixes of derived topics: dead letters and calls.
_DERIVED = ("$dead/", "$rpc/")
#: Answers that are remembered.
_REMEMBERED = 10_000


def address(text: str) -> Address:
    """Parse an address without its scope, an IPv4-mapped one as IPv4. Raises ValueError."""
    found = ip_address(text.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def origin(topic: str) -> str:
    """Return the topic or filter that this one is derived from, or ""."""
    for prefix in _DERIVED:
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return ""


def covers(pattern: str, wanted: str) -> bool:
    """Return whether ``pattern`` matches every topic that the filter or topic ``wanted`` matches. Neither is empty."""
    if pattern == wanted:
        return True
    if wanted.startswith("$") and pattern[0] in "+#":
        return False
    ours, theirs = pattern.split("/"), _SAME.get(wanted, wanted).split("/")
    for n, level in enumerate(ours):
        if level == "#":
            return True
        if n == len(theirs):
            return False
        if theirs[n] == "#" or (level not in ("+", theirs[n])):
            return False
    return len(ours) == len(theirs)


def overlaps(one: str, other: str) -> bool:
    """Return whether there can be a topic that both filters match. Neither is empty."""
    if (one[0] == "$" and other[0] in "+#") or (other[0] == "$" and one[0] in "+#"):
        return False
    ours, theirs = one.split("/"), other.split("/")
    for mine, their in zip(ours, theirs, strict=False):
        if "#" in (mine, their):
            return True
        if mine != their and "+" not in (mine, their):
            return False
    longer = ours[len(theirs) :] or theirs[len(ours) :]
    # With "/#", one level more would have to be the empty topic.
    return not longer or (longer == ["#"] and ["", "#"] not in (ours, theirs))


@dataclass(frozen=True)
class Rule:
    """One rule. An empty ``types``, ``topics`` or ``users`` stands for all; None in ``users`` for anonymous clients."""

    types: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    users: tuple[str | None, ...] = ()
    deny: tuple[Network, ...] = ()
    allow: tuple[Network, ...] = ()

    def decides(self, kind: str, topic: str | None, user: str | None, peer: Address) -> bool | None:
        """Return whether the rule allows a request, or None if it does not decide."""
        if self.types and kind not in self.types:
            return None
        if self.users and user not in self.users:
            return None
        if any(peer in network for network in self.deny) and self._about(topic, overlaps):
            return False
        if any(peer in network for network in self.allow) and self._about(topic, covers):
            return True
        return None

    def _about(self, topic: str | None, how: Callable[[str, str], bool]) -> bool:
        """Return whether the rule names this topic. A request without a topic is decided by rules without topics."""
        return not self.topics or (topic is not None and any(how(pattern, topic) for pattern in self.topics))


class Access:
    """The rules. ``open_``: anonymous clients are allowed where no rule decides."""

    def __init__(self, rules: Iterable[Rule], *, open_: bool):
        self._rules = tuple(rules)
        self._open = open_
        self._known: dict[tuple[str, str | None, str | None, Address], bool] = {}

    def allows(self, kind: str, topic: str | None, user: str | None, peer: Address) -> bool:
        """Return whether a user (None: anonymous) may send a request of this type from an address. ``topic`` is a
        well-formed topic or filter, or None for a request without one."""
        if not self._rules:
            return self._open or user is not None
        question = (kind, topic, user, peer)
        answer = self._known.get(question)
        if answer is None:
            answer = self._decide(*question)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if topic is None or len(topic) <= 256:
                self._known[question] = answer
        return answer

    def _decide(self, kind: str, topic: str | None, user: str | None, peer: Address) -> bool:
        # PUBLISH to $rpc/reply is not about a topic "reply", and no client publishes to $dead.
        derived_from = origin(topic) if topic is not None and kind != "PUBLISH" else ""
        for rule in self._rules:
            decided = rule.decides(kind, topic, user, peer)
            if decided is None:
                continue
            if derived_from and not rule.topics:
                # A rule without topics does not name this one; rules in front of it may name its origin.
                break
            return decided
        if derived_from:
            return self._decide(kind, derived_from, user, peer)
        return self._open or user is not None

    def check(self, kind: str, topic: str | None, user: str | None, peer: Address) -> None:
        """Raise RefusedError unless it is allowed."""
        if not self.allows(kind, topic, user, peer):
            about = f" {topic!r}" if topic is not None else ""
            raise RefusedError(
                spec5.NOT_AUTHORIZED, f"{kind}{about} is not allowed for {user or 'anonymous clients'}"
            )
