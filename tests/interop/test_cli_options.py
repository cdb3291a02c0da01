"""What mosquitto_pub's and mosquitto_sub's users expect of ``headwater pub`` and ``sub``, against a real mosquitto."""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.host.command import headwater, running
from tests.interop.recorder import recording
from tests.interop.test_cli_pub_sub import subscribed
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    return mosquitto()


@pytest.fixture(scope="module")
def where(broker: Mosquitto) -> list[object]:
    return ["-h", HOST, "-p", broker.port]


def pub(*arguments: object, data: bytes = b"", code: int = 0) -> bytes:
    """Publish: what was said on standard error."""
    sent = headwater("pub", *arguments, data=data)
    assert sent.returncode == code, sent
    assert sent.stdout == b""
    return sent.stderr


def kept(*arguments: object, code: int = 0) -> bytes:
    """What ``sub`` prints."""
    shown = headwater("sub", *arguments)
    assert shown.returncode == code, shown
    return shown.stdout


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, level", [("mqttv31", 3), ("3.1", 3), ("mqttv311", 4), ("3.1.1", 4), ("mqttv5", 5), ("5", 5)]
)
def test_versions(broker: Mosquitto, name: str, level: int) -> None:
    with recording(broker.port) as recorder:
        version = {3: "3.1", 4: "3.1.1", 5: "5"}[level]
        at = ("-h", HOST, "-p", recorder.port, "-V", name, "-t", f"version/{name}")
        pub(*at, "-m", name, "-q", 2, "-r")
        assert recorder.packets(version)[0]["protocol_level"] == level
        assert kept(*at, "-C", 1, "-q", 2) == f"{name}\n".encode()
        assert recorder.packets(version)[0]["protocol_level"] == level


# -- pub ---------------------------------------------------------------------------------------------------------------


def test_a_message_is_repeated(where: list[object], broker: Mosquitto, tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.write_bytes(b"file")
    with running("sub", *where, "-t", "rep", "-i", "rep", "-q", 2, "-C", 12, directory=tmp_path) as sub:
        subscribed(broker, "rep")
        pub(*where, "-t", "rep", "-m", "text", "--repeat", 3, "-q", 0)
        pub(*where, "-t", "rep", "-f", content, "--repeat", 3, "-q", 1, "-M", 1)
        pub(*where, "-t", "rep", "-s", "--repeat", 3, "-q", 2, data=b"a\nb")
        begun = time.monotonic()
        pub(*where, "-t", "rep", "-n", "--repeat", 3, "--repeat-delay", 0.3)
        assert time.monotonic() - begun >= 0.6
        assert sub.wait() == 0
        assert sub.output == b"text\n" * 3 + b"file\n" * 3 + b"a\nb\n" * 3 + b"\n" * 3


def test_no_more_are_in_flight_than_wanted(broker: Mosquitto) -> None:
    with recording(broker.port) as recorder:
        at = ("-h", HOST, "-p", recorder.port)
        pub(*at, "-t", "inflight", "-l", "-q", 2, "-M", 1, data=b"1\n2\n3\n")
        packets = [p["type"] for p in recorder.packets("3.1.1")]
        assert packets == ["CONNECT", *["PUBLISH", "PUBREL"] * 3, "DISCONNECT"]


def test_pub_leaves_what_its_session_has_for_others(where: list[object]) -> None:
    reader = (*where, "-i", "shared-id", "-c", "-q", 1)
    assert kept(*reader, "-t", "for-me", "-E") == b""
    pub(*where, "-t", "for-me", "-m", "kept", "-q", 1)
    pub(*reader, "-t", "elsewhere", "-m", "x")
    assert kept(*reader, "-t", "for-me", "-C", 1) == b"kept\n"


# -- sub ---------------------------------------------------------------------------------------------------------------


def test_retained_and_others(where: list[object], broker: Mosquitto, tmp_path: Path) -> None:
    for name in "ab":
        pub(*where, "-t", f"stale/{name}", "-m", name, "-r", "-q", 1)
    assert sorted(kept(*where, "-t", "stale/#", "--retained-only", "-C", 2).split()) == [b"a", b"b"]
    # Those that are left out do not count.
    reader = ("sub", *where, "-t", "stale/#", "-i")
    with (
        running(*reader, "stale", "-R", "-C", 1, directory=tmp_path) as sub,
        running(*reader, "only", "--retained-only", directory=tmp_path) as only,
    ):
        subscribed(broker, "stale")
        subscribed(broker, "only")
        pub(*where, "-t", "stale/c", "-m", "c")
        assert sub.wait() == only.wait() == 0
        assert sub.output == b"c\n"
        assert sorted(only.output.split()) == [b"a", b"b"]


def test_retained_messages_are_removed_but_those_filtered_out(where: list[object]) -> None:
    for name in ("rem/a", "rem/b", "rem/keep/c"):
        pub(*where, "-t", name, "-m", name, "-r", "-q", 1)
    out = ("-T", "rem/keep/#", "-T", "rem/b")
    # The one that counts comes last.
    these = ("-t", "rem/keep/#", "-t", "rem/b", "-t", "rem/a")
    assert kept(*where, *these, "--remove-retained", *out, "-C", 1) == b"rem/a\n"
    assert sorted(kept(*where, "-t", "rem/#", "-C", 2).split()) == [b"rem/b", b"rem/keep/c"]
    assert kept(*where, "-t", "rem/b", "-t", "rem/#", "-T", "rem/b", "-C", 1) == b"rem/keep/c\n"


def test_a_subscription_is_taken_back(where: list[object]) -> None:
    reader = (*where, "-i", "taken-back", "-c", "-q", 1)
    assert kept(*reader, "-t", "back/1", "-t", "back/2", "-E") == b""
    assert kept(*reader, "-U", "back/1", "-E") == b""
    for n in (1, 2):
        pub(*where, "-t", f"back/{n}", "-m", n, "-q", 1)
    assert kept(*reader, "-t", "back/3", "-U", "back/2", "-C", 1) == b"2\n"
    for n in (1, 2, 3):
        pub(*where, "-t", f"back/{n}", "-m", n, "-q", 1)
    assert kept(*reader, "-t", "back/3", "-C", 1) == b"3\n"


def test_no_newline(where: list[object]) -> None:
    for topic in "ab":
        pub(*where, "-t", f"newline/{topic}", "-m", topic, "-r", "-q", 1)
    assert sorted(kept(*where, "-t", "newline/#", "-C", 2, "-N").decode()) == ["a", "b"]
    assert sorted(kept(*where, "-t", "newline/#", "-C", 2, "-N", "-F", "%p%p").decode()) == list("aabb")


def test_an_id_with_a_prefix(broker: Mosquitto, where: list[object]) -> None:
    pub(*where, "-t", "a", "-n", "-I", "prefixed-")
    assert re.search(r"Sending CONNACK to prefixed-\d+ ", broker.log_text())


def test_debug_says_what_goes_on_and_no_secret(where: list[object]) -> None:
    said = pub(
        *(*where, "-V", 5, "-t", "dbg", "-m", "x", "-q", 1, "-r", "-d", "-u", "me", "-P", "secret1"),
        *("-D", "publish", "user-property", "key", "secret2", "-i", "debugged"),
    ).decode()
    for part in (
        "MQTT 5.0, as 'debugged'",
        "connected to",
        "a new session",
        "1 bytes to 'dbg' at QoS 1",
    ):
        assert part in said
    assert said.endswith("acknowledged\ndisconnected\n")
    assert "secret" not in said
    shown = headwater("sub", *where, "-V", 5, "-t", "dbg", "-C", 1, "-d", "-q", 1, "-P", "secret1")
    assert shown.stdout == b"x\n"
    assert "subscribed to 'dbg' at QoS 1" in shown.stderr.decode()
    assert b"Message(topic=dbg, qos=1, retain=True, 1 bytes), ['user_property']" in shown.stderr
    assert b"secret" not in shown.stderr


def test_a_server_that_is_down_is_not_the_end(mosquitto: StartBroker, tmp_path: Path) -> None:
    one, other = mosquitto(), mosquitto()
    # The port of those that stand without one; the later -h counts.
    places = ("-h", "nobody", "-h", f"{HOST}:{one.port},{HOST}", "-p", other.port, "-t", "many", "-q", 1)
    with running("sub", *places, "-i", "s", "-C", 2, directory=tmp_path) as sub:
        subscribed(one, "s")
        assert pub(*places, "-m", "first") == b""
        one.stop()
        sub.wait_for(f"connected again to {HOST}:{other.port}\n")
        said = pub(*places, "-m", "second", "-d").decode()
        assert f"no connection to {HOST}:{one.port}: " in said
        assert f"connected to {HOST}:{other.port}, a new session" in said
        assert sub.wait() == 0
        assert sub.output == b"first\nsecond\n"
    other.stop()
    refused = pub("-h", f"{HOST}:{one.port},{HOST}:{other.port}", "-t", "many", "-n", code=3)
    assert refused == f"headwater: no connection to {HOST}:{other.port}: Connection refused\n".encode()


def test_quiet(where: list[object]) -> None:
    assert pub("-h", HOST, "-p", 1, "-t", "a", "-n", "--quiet", code=3) == b""
    assert pub(*where, "-t", "a", "-f", "/nonexistent", "--quiet", code=2) == b""


def test_a_file_of_options(broker: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "options"
    file.write_text(
        f"# a comment\n\n-h {HOST}\n  --port {broker.port}\n-t of/options\n--username -me \n-P -a b\n"
        "-V mqttv5\n-D publish content-type 'text/x y'\n-D publish user-property 'a b' c\n-r\n"
    )
    pub("-o", file, "-m", "x", "-q", 1)
    file.write_text(f"-h {HOST}\n-p 1\n-t of/options\n-F %t %C %P\n-V 5\n-C 1\n")
    # What stands behind it counts.
    assert kept("-o", file, "-p", broker.port) == b"of/options text/x y a b:c\n"


# -- formats -----------------------------------------------------------------------------------------------------------

_SAID = (
    *("-D", "publish", "content-type", "text/x", "-D", "publish", "correlation-data", "abc"),
    *("-D", "publish", "message-expiry-interval", 100, "-D", "publish", "payload-format-indicator", 1),
    *("-D", "publish", "user-property", "k", "v", "-D", "publish", "user-property", "k", "v 2"),
    *("-D", "publish", "response-topic", "r/t"),
)


def formatted(where: list[object], topic: str, text: str, *more: object) -> bytes:
    return kept(*where, "-t", topic, "-C", 1, "-q", 1, "-F", text, *more)


def test_formats(where: list[object]) -> None:
    """As mosquitto_sub 2.0 prints them."""
    pub(*where, "-V", 5, "-t", "fmt/a", "-m", '{"a":1}', "-q", 1, "-r", *_SAID)
    got = formatted(
        where,
        "fmt/a",
        "t=%t p=%p x=%x X=%X q=%q r=%r l=%l m=%m A=%A C=%C D=%D F=%F P=%P R=%R S=%S %% @@",
        *("-V", 5, "-D", "subscribe", "subscription-identifier", 7),
    )
    assert got == (
        b't=fmt/a p={"a":1} x=7b2261223a317d X=7B2261223A317D q=1 r=1 l=7 m=1 A= C=text/x D=abc F=1 '
        b"P=k:v k:v 2 R=r/t S=7 % @\n"
    )
    assert 50 < int(formatted(where, "fmt/a", "%E", "-V", "5")) <= 100
    widths = "[%8t|%-8t|%.2t|%05m|%5l|%08t|%3p|%012x|%1q]\\t\\n\\e\\v\\a\\\\\\r\\0"
    assert formatted(where, "fmt/a", widths) == (
        b'[   fmt/a|fmt/a   |fm|00001|    7|   fmt/a|{"a":1}|7b2261223a317d|1]\t\n\x1b\v\a\\\r\0\n'
    )
    assert formatted(where, "fmt/a", "A%A C%C D%D E%E F%F P%P R%R S%S") == b"A C D E F P R S\n"


def test_times_in_formats(where: list[object]) -> None:
    pub(*where, "-t", "fmt/time", "-m", "x", "-r", "-q", 1)
    before = time.time_ns()
    stamp, iso, date, nanoseconds = formatted(where, "fmt/time", "%U %I @Y-@m-@d @N").decode().split()
    assert before <= int(stamp.replace(".", "")) <= time.time_ns()
    assert int(stamp.partition(".")[2]) == int(nanoseconds)
    local = time.localtime(int(stamp.partition(".")[0]))
    assert (iso, date) == (time.strftime("%Y-%m-%dT%H:%M:%S%z", local), time.strftime("%Y-%m-%d", local))


def test_json_in_formats(where: list[object]) -> None:
    pub(*where, "-V", 5, "-t", "fmt/j", "-m", '{"a":\n1.10}', "-q", 1, "-r", *_SAID)
    quoted = formatted(where, "fmt/j", "%j", "-V", 5)
    row = json.loads(quoted)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d{4}", row.pop("tst"))
    assert 50 < row["properties"].pop("message-expiry-interval") <= 100
    assert row == {
        "topic": "fmt/j",
        "qos": 1,
        "retain": 1,
        "payloadlen": 11,
        "mid": 1,
        "properties": {
            "content-type": "text/x",
            "correlation-data": b"abc".hex(),
            "payload-format-indicator": 1,
            "user-properties": {"k": "v 2"},
            "response-topic": "r/t",
        },
        "payload": '{"a":\n1.10}',
    }
    assert b'"user-properties":{"k":"v","k":"v 2"}' in quoted
    raw = formatted(where, "fmt/j", "%J")
    assert raw.endswith(b'"mid":1,"payload":{"a": 1.10}}\n')
    for payload, shown in (
        (b"NaN", '"payload":"NaN"'),
        (b"[" * 9999, '"payload":"[['),
        (b"\xff", '"payload_hex":"ff"'),
    ):
        pub(*where, "-t", "fmt/raw", "-s", "-r", "-q", 1, data=payload)
        for sequence in ("%j", "%J"):
            assert shown in formatted(where, "fmt/raw", sequence).decode()


def test_json_lines_have_the_properties(where: list[object]) -> None:
    pub(*where, "-V", 5, "-t", "fmt/lines", "-m", "x", "-q", 1, "-r", *_SAID)
    row = json.loads(kept(*where, "-t", "fmt/lines", "-C", 1, "--json", "-V", 5))
    assert 50 < row["properties"].pop("message_expiry_interval") <= 100
    assert row["properties"] == {
        "content_type": "text/x",
        "correlation_data": "616263",
        "payload_format_indicator": 1,
        "user_property": [["k", "v"], ["k", "v 2"]],
        "response_topic": "r/t",
    }
    assert "properties" not in json.loads(kept(*where, "-t", "fmt/lines", "-C", 1, "--json"))


# -- MQTT 5.0 ----------------------------------------------------------------------------------------------------------


def one(packets: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [packet for packet in packets if packet["type"] == kind]
    return found


def test_every_packet_says_its_properties(broker: Mosquitto) -> None:
    def user(packet: str) -> tuple[str, ...]:
        return ("-D", packet, "user-property", "of", packet)

    with recording(broker.port) as recorder:
        at = ("-h", HOST, "-p", recorder.port, "-V", 5, *user("connect"), *user("disconnect"))
        shown = kept(
            *(*at, "-t", "p5", "-U", "other", "-E", "-x", 60, *user("subscribe"), *user("unsubscribe")),
            *("-D", "connect", "receive-maximum", 7, "-D", "connect", "maximum-packet-size", 500),
            *("-D", "connect", "request-problem-information", 0),
            *("-D", "subscribe", "subscription-identifier", 9),
            *("-D", "disconnect", "session-expiry-interval", 0),
            *("-D", "disconnect", "reason-string", "bye"),
            *("--no-local", "--retain-as-published", "--retain-handling", "never"),
        )
        assert shown == b""
        packets = recorder.packets()
        connect, subscribe = one(packets, "CONNECT"), one(packets, "SUBSCRIBE")
        assert connect["properties"] == {
            "session_expiry_interval": 60,
            "receive_maximum": 7,
            "maximum_packet_size": 500,
            "request_problem_information": 0,
            "user_property": [["of", "connect"]],
        }
        assert connect["clean_start"] is True
        assert subscribe["properties"] == {
            "user_property": [["of", "subscribe"]],
            "subscription_identifier": [9],
        }
        assert subscribe["filters"] == [
            {"filter": "p5", "qos": 0, "no_local": True, "retain_as_published": True, "retain_handling": 2}
        ]
        assert one(packets, "UNSUBSCRIBE")["properties"] == {"user_property": [["of", "unsubscribe"]]}
        assert one(packets, "DISCONNECT")["properties"] == {
            "session_expiry_interval": 0,
            "reason_string": "bye",
            "user_property": [["of", "disconnect"]],
        }
        will = (
            "--will-topic",
            "w",
            "--will-payload",
            "x",
            *user("will"),
            "-D",
            "will",
            "will-delay-interval",
            5,
        )
        pub(*at, "-t", "p5", "-n", *user("publish"), *will)
        packets = recorder.packets()
        assert one(packets, "CONNECT")["will"]["properties"] == {
            "user_property": [["of", "will"]],
            "will_delay_interval": 5,
        }
        assert one(packets, "PUBLISH")["properties"] == {"user_property": [["of", "publish"]]}


def test_the_session_is_kept_as_long_as_wanted(where: list[object]) -> None:
    def session(*arguments: object) -> bytes:
        shown = headwater("sub", *where, "-V", 5, "-i", "lasting", "-t", "x", "-E", "-d", *arguments)
        assert shown.returncode == 0, shown
        found = re.search(rb"(a [a-z]+ session)", shown.stderr)
        assert found
        return found[1]

    assert session("-x", 100) == b"a new session"
    assert session("-c", "-D", "disconnect", "session-expiry-interval", 0) == b"a kept session"
    assert session("-c", "-D", "connect", "session-expiry-interval", 100) == b"a new session"
    assert session("-c", "-x", 0) == b"a kept session"
    for forever in ("-1", 4294967295, "∞"):
        assert session("-c", "-x", forever) == b"a new session"
        assert session() == b"a new session"
    assert session("-c") == b"a new session"
    assert session("-c") == b"a kept session"


def test_a_will_with_properties(broker: Mosquitto, where: list[object], tmp_path: Path) -> None:
    will = ("--will-topic", "wills/5", "--will-payload", "gone", "-D", "will", "content-type", "w")
    watch = ("sub", *where, "-V", 5, "-t", "wills/5", "-C", 1, "-F", "%p %C", "-i", "watch5")
    with running(*watch, directory=tmp_path) as watcher:
        subscribed(broker, "watch5")
        with running("sub", *where, "-V", 5, "-t", "x", "-i", "dying5", *will, directory=tmp_path) as sub:
            subscribed(broker, "dying5")
            sub.end(signal.SIGKILL)
        assert watcher.wait() == 0
        assert watcher.output == b"gone w\n"


def test_the_server_leaves_out_what_is_too_large(
    broker: Mosquitto, where: list[object], tmp_path: Path
) -> None:
    small = ("-V", 5, "-D", "connect", "maximum-packet-size", 100)
    with running("sub", *where, *small, "-t", "size", "-i", "small", "-C", 1, directory=tmp_path) as sub:
        subscribed(broker, "small")
        pub(*where, "-t", "size", "-m", "x" * 200)
        pub(*where, "-t", "size", "-m", "fits")
        assert sub.wait() == 0
        assert sub.output == b"fits\n"


def test_refusals_of_5_0_are_exit_code_1_and_say_why(mosquitto: StartBroker, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read #\n")
    acl.chmod(0o644)
    with mosquitto(settings={"acl_file": acl, "retain_available": "false"}) as broker:
        at = ("-h", HOST, "-p", broker.port, "-V", 5, "-t", "a", "-n")
        for qos in (1, 2):
            assert (
                pub(*at, "-q", qos, code=1)
                == b"headwater: the server refused the message: not authorized (0x87)\n"
            )
        assert b"the server does not" in pub(*at, "-r", "-q", 0, code=1)
        assert pub(*at, "-r", "-q", 1, code=1).startswith(b"headwater: not published: ")
    with mosquitto(settings={"allow_anonymous": "false"}) as broker:
        reader = ("-h", HOST, "-p", broker.port, "-V", 5, "-t", "a")
        refusal = b"headwater: the server refused the connection: not authorized (0x87)\n"
        assert pub(*reader, "-n", code=1) == refusal
        shown = headwater("sub", *reader)
        assert (shown.returncode, shown.stderr) == (1, refusal)
