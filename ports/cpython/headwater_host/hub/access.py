"""Who may do what (FMQ, section 4): rules in order, of which the first that matches decides.

A rule is about types of requests, topics and users, and says from which networks that is denied and from which it is
allowed; from any other, the next rule is asked. Where a request names a filter (SUBSCRIBE), a rule denies it when any
topic of it is denied, and allows it only when all of them are allowed: ``#`` is no way around ``secret/#``.

The rules of a topic hold for what the hub derives from it: its dead letters (``$dead/TOPIC``) and its calls
(``$rpc/TOPIC``). A rule that names a derived topic takes precedence over those of the topic it is derived from.

When no rule decides: who has logged in may, and so may everybody on a hub that only this machine can reach.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from headwater_host.hub.errors import NOT_AUTHORIZED, RefusedError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: The requests that are asked about. AUTH is open to everybody; what answers or goes on is a part of what was allowed.
TYPES = ("SLAVEOF", "REGISTER", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "CONSUME", "ELECT", "UNREGISTER")
#: Everybody, where networks stand.
ANY = (ip_network("0.0.0.0/0"), ip_network("::/0"))
#: What "#" matches as well, the level above, would be an empty topic here, which there is not.
_SAME = {"#": "+/#", "/#": "/+/#"}
#: What derived topics begin with: dead letters, and calls.
_DERIVED = ("$dead/", "$rpc/")
#: How many answers are remembered.
_REMEMBERED = 10_000


def address(text: str) -> Address:
    """The address of a peer: without a scope, and IPv4 as such. Raises ValueError."""
    found = ip_address(text.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def origin(topic: str) -> str:
    """The topic or filter that this one is derived from, "" for none."""
    for prefix in _DERIVED:
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return ""


def covers(pattern: str, wanted: str) -> bool:
    """Whether the filter ``pattern`` matches every topic that the filter or topic ``wanted`` does. Neither is empty."""
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
    """Whether there can be a topic that both filters match. Neither is empty."""
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
    """One rule; an empty ``types``, ``topics`` or ``users`` is about all of them. ``users`` may hold None: those who
    have not logged in."""

    types: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    users: tuple[str | None, ...] = ()
    deny: tuple[Network, ...] = ()
    allow: tuple[Network, ...] = ()

    def decides(self, kind: str, topic: str | None, user: str | None, peer: Address) -> bool | None:
        """True: allowed; False: denied; None: not by this rule."""
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
        """Whether it is about this topic; a request about none is a matter of rules about all."""
        return not self.topics or (topic is not None and any(how(pattern, topic) for pattern in self.topics))


class Access:
    """The rules, and what holds without them: ``open_`` says that everybody may who can reach the hub at all."""

    def __init__(self, rules: Iterable[Rule], *, open_: bool):
        self._rules = tuple(rules)
        self._open = open_
        self._known: dict[tuple[str, str | None, str | None, Address], bool] = {}

    def allows(self, kind: str, topic: str | None, user: str | None, peer: Address) -> bool:
        """Whether ``user`` (None: nobody who logged in) may send a request of this type, about this well-formed topic
        or filter (None: it is about none), from there."""
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
        # Publishing to $rpc/reply is not about a topic "reply", and nobody publishes to $dead.
        derived_from = origin(topic) if topic is not None and kind != "PUBLISH" else ""
        for rule in self._rules:
            decided = rule.decides(kind, topic, user, peer)
            if decided is None:
                continue
            if derived_from and not rule.topics:
                # A rule about all topics does not name this one: the rules in front of it may be about its origin.
                break
            return decided
        if derived_from:
            return self._decide(kind, derived_from, user, peer)
        return self._open or user is not None

    def check(self, kind: str, topic: str | None, user: str | None, peer: Address) -> None:
        """Raises RefusedError when it is not allowed."""
        if not self.allows(kind, topic, user, peer):
            about = f" {topic!r}" if topic is not None else ""
            raise RefusedError(
                NOT_AUTHORIZED, f"{kind}{about} is not allowed for {user or 'who has not logged in'}"
            )
