"""The benchmark of the host's clients runs, and finds out who claims too much or too little."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.command import quick_bench
from tools.bench import host, report
from tools.bench.floods import CannedFlood, FloodError
from tools.bench.hosts import sync
from tools.bench.hosts.job import Clock, Incoming, Outgoing, packet, payload
from tools.broker import Mosquitto

EFFORT = host.Effort(rounds=1, ms=20, messages=300)
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def figures() -> host.Figures:
    """As the command says them: each measurement waits for the broker's count, which comes once a second."""
    return host.Figures(**quick_bench("host", ("headwater", "blocks")))


@pytest.mark.needs_mosquitto
def test_every_task_has_the_round_and_the_time_of_every_client(figures: host.Figures) -> None:
    assert set(figures.rates) == {task.key for task in host.TASKS}
    for task in host.TASKS:
        expected = {"floor", "headwater"} | ({"blocks"} if task.key == "publish 0" else set())
        assert set(figures.rates[task.key]) == set(figures.cpu[task.key]) == expected
        assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in figures.rates[task.key].values())
    assert figures.missing == []


@pytest.mark.needs_mosquitto
def test_tables_have_a_cell_for_every_column(figures: host.Figures) -> None:
    for table in host.tables(figures):
        assert all(len(row) == len(table.columns) == len(host.TASKS) + 1 for row in table.rows)
        assert all(f"\n{row[0]} " in report.markdown(table) for row in table.rows)


@pytest.mark.needs_mosquitto
def test_who_says_it_sent_more_than_the_broker_read_fails_the_run(mosquitto: StartBroker) -> None:
    broker = mosquitto(settings={"sys_interval": 1})
    with (
        contextlib.closing(host.Counter(broker.port)) as counter,
        contextlib.closing(sync.join(broker.port, b"honest")) as client,
    ):
        client.sendall(packet(0, 0) * 3)
        counter.expect(3)
        client.sendall(packet(0, 0))
        with pytest.raises(host.ClientError, match="has read 4 messages; the client reports 5"):
            counter.expect(5)
        with pytest.raises(host.ClientError, match="has read 4 messages; the client reports 3"):
            counter.expect(3)


@pytest.mark.parametrize(
    "bodies",
    [
        [payload(0), payload(2)],
        [payload(1), payload(0)],
        [payload(0), payload(0)],
        [payload(0), payload(1)[:-1]],
    ],
)
def test_messages_that_are_not_the_ones_that_were_sent_are_found_out(bodies: list[bytes]) -> None:
    clock = Clock()
    clock.start()
    incoming = Incoming(2, clock)
    assert [incoming.take(body) for body in bodies] == [False, True]
    with pytest.raises(ValueError, match="arrived as"):
        incoming.check()


def test_what_is_claimed_is_what_was_taken() -> None:
    outgoing = Outgoing(5)
    assert sum(1 for _ in outgoing) == outgoing.count > 0


def test_a_client_that_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CLIENTS", {**host.CLIENTS, "gone": host.Client("gone", "no-such-client")})
    said: list[str] = []
    figures = host.measure(host.Effort(0), ("gone",), said.append)
    assert "gone" not in figures.labels
    assert figures.missing == ["gone is not installed: ./run bench installs it"]


@pytest.mark.needs_mosquitto
def test_a_client_that_fails_fails_the_run_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = host.Task("publish 3", "pub Q3", "publish", 3)
    monkeypatch.setattr(host, "TASKS", [broken])
    monkeypatch.setattr(host, "CLIENTS", {"floor": host.Client("floor", qos=(3,))})
    with pytest.raises(host.ClientError, match=r"floor, pub Q3:(?s:.)*IndexError"):
        host.measure(EFFORT, (), lambda text: None)


def test_a_client_that_leaves_before_it_has_all_or_never_comes_is_found_out() -> None:
    with contextlib.closing(CannedFlood(0, 200_000)) as flood:
        client = sync.join(flood.port, b"early")
        sync.subscribe(client, 0)
        client.close()
        with pytest.raises(FloodError, match="disconnected before"):
            flood.start()
    with contextlib.closing(CannedFlood(0, 1)) as flood:
        sync.join(flood.port, b"silent").close()
        with pytest.raises(FloodError, match="did not subscribe"):
            flood.start()
