"""The benchmark of the hub runs, and finds out who loses, doubles or mixes up messages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.command import quick_bench
from tools import toolchain
from tools.bench import hub, report
from tools.bench.hubs import load, servers
from tools.bench.hubs.wires import Fmq, Mqtt, Subscriber, Wire, WireError, _RedisWaitingPublisher
from tools.rabbitmq import RabbitMqCluster


@pytest.fixture(scope="module")
def figures() -> hub.Figures:
    return hub.Figures(**quick_bench("hub", ("headwater",)))


def test_every_task_has_figures_of_every_row(figures: hub.Figures) -> None:
    keys = {f"{task} {qos}" for task in hub.TASKS for qos in (0, 1, 2)}
    assert set(figures.rates) == set(figures.cpu) == keys
    assert set(figures.middle) == set(figures.slow) == {key for key in keys if key.startswith("paced")}
    for cells in (figures.rates, figures.cpu, figures.middle, figures.slow):
        for found in cells.values():
            assert set(found) == {"headwater", "amqtt"}
            assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in found.values())
    assert figures.missing == []


def test_tables_have_a_cell_for_every_column(figures: hub.Figures) -> None:
    *others, fairness, memory = hub.tables(figures)
    assert [len(table.rows) for table in others] == [2, 2, 2]
    assert [row[0] for row in fairness.rows] == [
        "nothing", "publishes 2,000 messages", "unregisters their topic"
    ]  # fmt: skip
    assert len(memory.rows) == 3
    for table in [*others, fairness, memory]:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(f"\n{row[0]} " in report.markdown(table) for row in table.rows)


def test_a_server_that_is_not_here_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find", lambda name: None)
    said: list[str] = []
    figures = hub.measure(hub.Effort(rounds=0), ("redis",), said.append)
    assert "redis" not in figures.labels
    assert figures.missing[0].startswith("Redis Streams is left out: redis is not installed")
    assert figures.missing[0] in said


class Wrong(Subscriber):
    """Changes the numbers of what the real one receives."""

    def __init__(self, real: Subscriber, change: Callable[[bytes], bytes]):
        self.socket = real.socket
        self._real, self._change = real, change

    def take(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        numbers, answer, rest = self._real.take(data)
        return self._change(numbers), answer, rest


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda numbers: numbers.replace(b"00000003", b"00000002"), id="twice"),
        pytest.param(lambda numbers: numbers.replace(b"00000001", b"00000009"), id="another order"),
    ],
)
def test_what_does_not_come_once_and_in_order_fails(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    class Changed(Fmq):
        def subscriber(self, n: int) -> Subscriber:
            return Wrong(super().subscriber(n), change)

    def run(wire: Wire) -> load.Outcome:
        return load.paced(wire, 1000.0, 40)

    with servers.HeadwaterHub(tmp_path) as broker:
        assert run(Fmq(broker.port, 1, "right")).count == 40
        with pytest.raises(WireError, match="not in their order"):
            run(Changed(broker.port, 1, "wrong"))


@pytest.mark.needs_rabbitmq
def test_quorum_queues_have_a_member_on_each_of_three_nodes(tmp_path: Path) -> None:
    with RabbitMqCluster(tmp_path) as cluster:
        wire = Mqtt(cluster.port, 1, "quorum")
        assert load.paced(wire, 1000.0, 40).count == 40
        queues = cluster.control(cluster, "-q", "list_queues", "type", "members").splitlines()[1:]
        assert len(queues) == load.PUBLISHERS
        for queue in queues:
            kind, members = queue.split("\t")
            assert (kind, members.count("@localhost")) == ("quorum", 3)
        assert len(cluster.pids) == 3
    assert cluster.pids == []


ID = b"$15\r\n1700000000000-0\r\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_message_is_done_when_the_replica_has_it(size: int) -> None:
    publisher = _RedisWaitingPublisher.__new__(_RedisWaitingPublisher)
    publisher._answered = publisher._waiting = 0
    done, rest, asked = 0, b"", 0

    def feed(data: bytes) -> None:
        nonlocal done, rest, asked
        for at in range(0, len(data), size):
            more, answer, rest = publisher.take(rest + data[at : at + size])
            done += more
            asked += bool(answer)

    feed(ID)
    assert (done, asked) == (0, 1)
    # Answers to messages that were sent before the WAIT come first.
    feed(ID + ID)
    feed(b":1\r\n")
    assert (done, asked) == (1, 2)
    feed(b":1\r\n" + ID)
    assert (done, asked, rest) == (3, 3, b"")
    with pytest.raises(WireError, match="WAIT"):
        feed(b":0\r\n")
