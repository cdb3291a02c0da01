"""The lease in a real PostgreSQL: one leader, killed, cut off, released; standbys that are missing."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from headwater_host.hub.cluster.postgres_lease import PostgresLease, clock
from tests.cluster.proxy import Network
from tools.postgres import PostgreSql

pytestmark = pytest.mark.needs_postgresql

LENGTH = 2.0
SECONDS = 60.0


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS leader (epoch bigint, turn bigint, beat bigint, holder text, length_ms int, "
            "lineage text)"
        )
        db.execute("INSERT INTO leader VALUES (0, 0, 0, '', 0, 'x')")


def until(true: Callable[[], object], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)


class Listening:
    """An address at which somebody listens who says nothing, as a hub that hangs."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()

    def close(self) -> None:
        self.socket.close()


@contextmanager
def candidates(url: str, n: int, length: float = LENGTH, **more: Any) -> Iterator[list[PostgresLease]]:
    places = [Listening() for _ in range(n)]
    leases = [
        PostgresLease(
            url,
            f"{place.address[0]}:{place.address[1]}",
            place.address,
            length,
            **({"standby": False} | more),
        )
        for place in places
    ]
    for lease, place in zip(leases, places, strict=True):
        lease.place = place  # type: ignore[attr-defined]
        lease.start()
        lease.stand(True)
    try:
        yield leases
    finally:
        for lease in leases:
            lease.stop()
        for place in places:
            place.close()


def leading(leases: list[PostgresLease]) -> list[PostgresLease]:
    return [lease for lease in leases if lease.epoch and lease.holds(lease.epoch)]


def test_one_of_three_leads_and_the_others_know_it(database: str) -> None:
    prepare(database)
    with candidates(database, 3) as leases:
        until(lambda: leading(leases))
        (leader,) = leading(leases)
        until(lambda: all(lease.leader() == leader.advertise for lease in leases))
        epoch = leader.epoch
        end = clock() + 2 * LENGTH
        while clock() < end:
            assert [lease.epoch for lease in leading(leases)] == [epoch]
            time.sleep(0.01)
        assert leader.elect() is not None


def test_a_released_lease_is_taken_at_once(database: str) -> None:
    prepare(database)
    with candidates(database, 2, length=20.0) as leases:
        until(lambda: leading(leases))
        (leader,) = leading(leases)
        (other,) = (lease for lease in leases if lease is not leader)
        until(lambda: other.row is not None and other.row.epoch == leader.epoch)
        leader.stand(False)
        began = clock()
        leader.release(leader.epoch)
        until(lambda: other.epoch)
        assert clock() - began < 5.0
        assert not leader.epoch
        assert other.epoch == 2


def kill(lease: PostgresLease) -> None:
    """End a thread as a killed process would: its sockets close, and it releases nothing."""
    connection = lease._connection
    assert connection is not None
    lease._stands = False
    lease._lease.step_down()
    lease._stopping = True
    lease.place.close()  # type: ignore[attr-defined]
    lease.poke()


def test_a_killed_leader_is_replaced_long_before_its_lease_ends(database: str) -> None:
    prepare(database)
    with candidates(database, 2, length=30.0) as leases:
        until(lambda: leading(leases))
        (leader,) = leading(leases)
        (other,) = (lease for lease in leases if lease is not leader)
        until(lambda: other.leader() == leader.advertise)
        began = clock()
        kill(leader)
        until(lambda: other.epoch)
        assert clock() - began < 10.0


def test_a_leader_whose_session_was_ended_keeps_its_lease(database: str) -> None:
    """The lock is free, but the leader's address answers: the hint alone takes nothing over."""
    prepare(database)
    with candidates(database, 2) as leases:
        until(lambda: leading(leases))
        (leader,) = leading(leases)
        with psycopg.connect(database, autocommit=True) as db:
            for _ in range(10):
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                    "AND datname = current_database()"
                )
                time.sleep(0.2)
                assert leading(leases) == [leader]


def test_a_leader_that_is_cut_off_steps_down_before_another_leads(database: str) -> None:
    prepare(database)
    where = psycopg.conninfo.conninfo_to_dict(database)
    with Network() as network:
        proxy = network.proxy((str(where["host"]), int(str(where["port"]))))
        behind = psycopg.conninfo.make_conninfo(database, port=proxy.port)
        with candidates(behind, 1) as (leader,):
            until(lambda: leader.epoch)
            with candidates(database, 1) as (other,):
                until(lambda: other.leader() == leader.advertise)
                epoch = leader.epoch
                proxy.isolate()
                began = clock()
                ended = False
                while not other.epoch:
                    held = leader.holds(epoch)
                    assert not (held and other.epoch)
                    ended |= not held
                    time.sleep(0.002)
                    assert clock() - began < SECONDS
                assert ended
                proxy.heal()
                until(lambda: leader.leader() == other.advertise)
                assert not leader.epoch


def test_without_a_standby_nobody_leads_unless_that_is_accepted(database: str) -> None:
    prepare(database)
    with candidates(database, 1, standby=True) as (lease,):
        until(lambda: lease.problem)
        assert "synchronous_standby_names" in lease.problem
        assert not lease.epoch


def test_a_standby_that_is_away_keeps_a_candidate_from_leading(
    postgresql: Callable[..., PostgreSql],
) -> None:
    primary = postgresql()
    url = primary.create("hub")
    prepare(url)
    primary.configure(synchronous_standby_names="absent")
    with candidates(url, 1, standby=True) as (lease,):
        until(lambda: "no synchronous standby" in lease.problem)
        # Even a candidate that does not check leads only when its takeover is replicated.
        with candidates(url, 1) as (careless,):
            cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            # A cancelled wait for the standby returns as a success, with a warning: it is none.
            until(lambda: primary.sql(cancel) and "did not wait for its standby" in careless.problem)
            assert not leading([lease, careless])
            primary.configure(synchronous_standby_names="")
            until(lambda: careless.epoch)


def test_a_database_that_goes_away_ends_leadership_and_it_comes_back(
    postgresql: Callable[..., PostgreSql],
) -> None:
    server = postgresql()
    url = server.create("hub")
    prepare(url)
    with candidates(url, 2) as leases:
        until(lambda: leading(leases))
        server.kill()
        until(lambda: not leading(leases))
        assert any(lease.problem for lease in leases)
        server.start()
        until(lambda: leading(leases))
        assert len(leading(leases)) == 1
