"""Well-formed frames with odd values: each is answered, or ends the connection with a reason; none is an error."""

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq import spec
from headwater.fmq.frames import ROWS
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import encode as value
from headwater_host.hub import frames
from headwater_host.hub.access import ANY, Rule
from tests.host.hub_client import ClientLimits, Limits, Peer, config, hub_of, new_id

RULES = {
    "none": (),
    "topics": (
        Rule(topics=("secret/#", "+", "$dead/jobs/#"), deny=ANY),
        Rule(("PUBLISH",), ("+/x", "jobs/#"), (None,), allow=ANY),
        Rule(topics=("#", "/#"), allow=ANY),
    ),
}
TEXTS = (
    *("", "t", "jobs", "jobs/x", "secret/x", "/", "//", "/x", "x/", "#", "/#", "+", "+/#", "a/#/b", "a+"),
    *("$", "$/", "$dead", "$dead/", "$dead//", "$dead/#", "$dead/jobs/x", "$dead/$dead/x", "$rpc", "$rpc/"),
    *("$rpc/#", "$rpc/t", "$rpc/$rpc/", "$rpc/reply", "$rpc/reply/", "$hub", "$hub/topics", "$session/x"),
    *("\0", "\ufeff", "é😀", "/" * 70, "a" * 300, "celsius > 4", "!(("),
)
NUMBERS = (0, 1, 2, 5, 255, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 32) + 1, 1 << 63, (1 << 64) - 1)
ANSWERS = (spec.ACK, spec.PUBREC, spec.PUBCOMP)
HASHES = (0, 1, hash_of(""), hash_of("t"), hash_of("$dead/t"), (1 << 128) - 1)
PAYLOADS = (
    *(b"", b"x", b"\xe0", b"\xe1\x01\x11\x01a\x31\x05", b"\xa1\x01", new_id(spec.CONSUME)),
    *(value("#"), value(""), value(None) * 2),
)


def odd(chance: random.Random, letter: str) -> bytes:
    """A value that a field of this letter (``headwater.fmq.frames``) can have."""
    if letter == "R":
        return chance.choice(PAYLOADS)
    if letter == "L":
        return value([chance.choice(TEXTS) for _ in range(chance.choice((0, 0, 1, 3)))])
    if letter == "A":
        return bytes.fromhex(chance.choice(("410100007f1e50", "40" + "0000", "611" + "0" * 31 + "1e50")))
    if letter == "P" and chance.random() < 0.2:
        return value(chance.choice(HASHES))
    choices: dict[str, tuple[Any, ...]] = {
        "B": (False, True),
        "Q": (0, 1, 2),
        "C": (0, 1, 16, 128, 255),
        "D": (DateTime(0), DateTime(1 << 70)),
        "I": NUMBERS,
        "M": NUMBERS,
        "N": (None, *TEXTS),
        "O": (None, *TEXTS),
    }
    return value(chance.choice(choices.get(letter, TEXTS)))


def odd_frame(chance: random.Random, kind: int, seen: list[bytes]) -> bytes:
    """A frame of a type; ``seen`` are ids that were used before."""
    flags = {spec.PUBLISH: (0, 1, 2, 3, 4, 5, 10, 12), spec.CONSUME: (0, 1, 2, 3), spec.SLAVEOF: (0, 1)}
    head = kind << 4 | chance.choice(flags.get(kind, (0,)))
    letters = ROWS[kind][1:].decode()
    if kind == spec.CONSUME and head & spec.ONCE:
        letters = "PLTTR"
    if kind == spec.ACK:
        letters = chance.choice(("", "C", "CT"))
    required = 5 if len(letters) == 5 else ROWS[kind][0]
    letters = letters[: chance.randint(min(required, len(letters)), len(letters))]
    # An answer is read by the type in its id, so the id of a request is of its own type.
    fitting = seen if kind in (*ANSWERS, spec.PUBREL) else [one for one in seen if one[0] >> 4 == kind]
    fresh = not fitting or chance.random() < 0.7
    ident = new_id(kind, chance.choice((0, 1, 300))) if fresh else chance.choice(fitting)
    seen.append(ident)
    if kind in (spec.PUBREC, spec.PUBREL, spec.PUBCOMP, spec.PINGREQ):
        return frames.bare(kind, ident)
    return frames.framed(head, ident, b"".join(odd(chance, letter) for letter in letters))


@pytest.mark.parametrize("rules", RULES)
async def test_odd_values_are_no_errors(rules: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(20_260)
    # AUTH for the second time and what a hub does not take end the connection: they are seldom.
    ends = (spec.AUTH, spec.SLAVEOF, spec.CONSUMERESP, spec.ELECT)
    kinds = [kind for kind in range(16) if kind not in (*ends, 4)]
    limits, clients = Limits(tries=2), ClientLimits(once=0.05, rpc=0.05, redelivery=0.2, frame=1 << 16)
    caplog.set_level(logging.WARNING)
    async with hub_of(config(tmp_path, limits, clients, rules=RULES[rules])) as hub:
        answered = 0
        for _ in range(300):
            seen: list[bytes] = []
            peer = await Peer.open(hub)
            if chance.random() < 0.9:
                await peer.auth(chance.choice(("", "a", "b")), clean=chance.random() < 0.5)
            for _ in range(20):
                peer.raw(odd_frame(chance, chance.choice(ends if chance.random() < 0.01 else kinds), seen))
            peer.send(spec.PINGREQ, ident=(last := new_id(spec.PINGREQ)))
            try:
                while (got := await peer.next()).id != last:
                    answered += 1
                    assert got.kind != spec.ACK or got.code != 0x80, got
            except (EOFError, ConnectionError):
                pass
            peer.abort()
        assert answered > 1000

    errors = [record for record in caplog.records if record.exc_info or record.name == "asyncio"]
    assert not errors, errors[0].getMessage()


@pytest.mark.parametrize("rules", RULES)
async def test_the_empty_topic_is_refused(
    rules: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_of(config(tmp_path, rules=RULES[rules])) as hub:
        peer = await Peer.login(hub)
        for kind, rest in ((spec.PUBLISH, (b"\xd0", b"x")), (spec.UNREGISTER, ()), (spec.REGISTER, ())) * 2:
            assert (await peer.ask(kind, (b"", *rest))).code == 0x90, kind
        await peer.ping()
    assert not caplog.records
