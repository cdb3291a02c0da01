"""The board's resolver, with a name server that is slow, silent, wrong, or knows no such name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.names import FromStranger, a, answer, labels, name_server, record
from tools import mpy
from tools.broker import Mosquitto
from tools.runtimes import run_unix

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]
SCRIPT = Path(__file__).parent / "device" / "resolver.py"
NXDOMAIN = 3
SERVFAIL = 2


#: By name: what the server sends for a query, in turn.
ANSWERS: dict[str, Callable[[bytes, int], list[bytes]]] = {
    "plain.test": lambda query, n: [answer(query, a("10.0.0.1"))],
    "several.test": lambda query, n: [answer(query, a("10.0.0.1"), a("10.0.0.2"))],
    "alias.test": lambda query, n: [
        answer(query, record(5, labels("other.test")), a("10.0.0.3", labels("other.test")))
    ],
    "late.test": lambda query, n: [] if n == 1 else [answer(query, a("10.0.0.4"))],
    "forged.test": lambda query, n: [
        answer(b"\0\0" + query[2:], a("6.6.6.6")),
        answer(query[:12] + labels("x.test") + query[-4:], a("6.6.6.6")),
        query,
        b"",
        b"\xff",
        answer(query, a("10.0.0.5")),
    ],
    "stranger.test": lambda query, n: [
        FromStranger(answer(query, a("6.6.6.6"))),
        answer(query, a("10.0.0.5")),
    ],
    "printer2.local": lambda query, n: [
        FromStranger(answer(query, a("6.6.6.6"))),
        answer(query, a("10.0.0.10")),
    ],
    "short.test": lambda query, n: [answer(query, a("10.0.0.6"))[:-2]],
    "six.test": lambda query, n: [answer(query, record(28, bytes(16)))],
    "printer.local": lambda query, n: [answer(query, a("10.0.0.9"))],
    "gone.test": lambda query, n: [answer(query, code=NXDOMAIN)],
    "broken.test": lambda query, n: (
        [answer(query, code=SERVFAIL)] if n < 3 else [answer(query, a("10.0.0.8"))]
    ),
    "silent.test": lambda query, n: [],
    # Nobody listens at the first.
    "broker.test": lambda query, n: [answer(query, a("127.0.0.2" if n == 1 else "127.0.0.1"))],
    "old.test": lambda query, n: [],
}


def test_names_are_resolved_without_blocking(mosquitto: Callable[..., Mosquitto]) -> None:
    hosts = ["192.168.4.1", "kept", *(host for host in ANSWERS if host not in ("broker.test", "old.test"))]
    path = [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
    with name_server(lambda name, query, n: ANSWERS[name](query, n)) as (port, asked):
        done = run_unix(SCRIPT, str(port), str(mosquitto().port), *hosts, path=path)
    lines = done.stdout.splitlines()
    refusals = [line for line in lines if line.startswith("host ")]
    # By a dialer and by an SNTP client each.
    assert len(refusals) == 12
    assert all(
        "a host name has 1 to 63 bytes between dots, and up to 253 in all" in line for line in refusals
    )
    assert [line for line in lines if line not in refusals] == [
        "192.168.4.1 ['192.168.4.1'] at once free",
        "kept ['10.0.0.7'] at once free",
        "plain.test ['10.0.0.1'] at once free",
        "several.test ['10.0.0.1', '10.0.0.2'] at once free",
        "alias.test ['10.0.0.3'] at once free",
        "late.test ['10.0.0.4'] late free",
        "forged.test ['10.0.0.5'] at once free",
        "stranger.test ['10.0.0.5'] at once free",
        "printer2.local ['10.0.0.10'] at once free",
        "short.test errno 113",
        "six.test errno 113",
        "printer.local ['10.0.0.9'] at once free",
        "gone.test errno 113",
        "broken.test ['10.0.0.8'] late free",
        "silent.test errno 113",
        "errno 111",
        "connected True",
        "connected True",
        "errno 111",
        "errno 111",
        "errno 111",
    ], done.stdout
    assert asked.count("silent.test") in (5, 6)
    assert asked.count("broker.test") == 2
    assert "kept" not in asked
    assert "old.test" in asked
