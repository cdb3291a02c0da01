"""The PostgreSQL servers of the cluster's tests: killed, paused, restarted, with a standby that is promoted."""

from collections.abc import Callable

import pytest

from tests.waiting import wait_until
from tools.broker import BrokerError
from tools.postgres import PostgreSql

pytestmark = pytest.mark.needs_postgresql


def numbers(server: PostgreSql) -> str:
    return server.sql("SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM t")


def test_each_test_has_a_database_of_its_own(database: str, postgresql: Callable[..., PostgreSql]) -> None:
    assert database.startswith("postgresql://headwater@127.0.0.1:")


def test_a_synchronous_standby_takes_over(postgresql: Callable[..., PostgreSql]) -> None:
    primary = postgresql()
    primary.sql("CREATE TABLE t (n int)")
    standby = primary.standby("second")
    try:
        primary.require("second")
        primary.sql("INSERT INTO t VALUES (1)")
        # Without its standby the primary does not answer, and a cancelled wait is a warning, not an error.
        standby.pause()
        with pytest.raises(BrokerError, match="did not end"):
            primary.sql("INSERT INTO t VALUES (2)", seconds=1)
        standby.resume()
        wait_until(lambda: numbers(primary) == "1 2")
        primary.kill()
        standby.promote()
        assert numbers(standby) == "1 2"
        assert standby.sql("SHOW synchronous_standby_names") == ""
        standby.sql("INSERT INTO t VALUES (3)")
        primary.follow(standby, "first")
        standby.require("first")
        standby.sql("INSERT INTO t VALUES (4)")
        assert numbers(primary) == "1 2 3 4"
        with pytest.raises(BrokerError, match="read-only"):
            primary.sql("INSERT INTO t VALUES (5)")
    finally:
        standby.remove()
    assert not standby.directory.exists()


def test_a_killed_server_restarts_on_its_port_with_what_was_committed(
    postgresql: Callable[..., PostgreSql],
) -> None:
    server = postgresql(settings={"max_connections": 20})
    port = server.port
    server.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
    server.kill()
    with pytest.raises(BrokerError, match="refused"):
        server.sql("SELECT 1")
    server.start()
    assert (server.port, numbers(server)) == (port, "1")
    assert server.sql("SHOW max_connections") == "20"
    server.restart()
    assert numbers(server) == "1"
