"""Sessions of a former leader that wait for a missing standby: a takeover ends them."""

from collections.abc import Callable

import pytest

from tests.cluster.test_postgres_lease import candidates, kill, leading, prepare, until
from tools.postgres import PostgreSql

pytestmark = pytest.mark.needs_postgresql

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_LOCKED = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = {}::oid"


def test_a_takeover_ends_a_renewal_that_waits_for_a_missing_standby(
    postgresql: Callable[..., PostgreSql],
) -> None:
    primary = postgresql()
    url = primary.create("hub")
    prepare(url)

    def sessions(query: str) -> set[str]:
        return set(primary.sql(query).split())

    with candidates(url, 2) as leases:
        until(lambda: leading(leases))
        (leader,) = leading(leases)
        (other,) = (lease for lease in leases if lease is not leader)
        until(lambda: other.leader() == leader.advertise)
        epoch = leader.epoch
        holds = sessions(_LOCKED.format(epoch))
        other.stand(False)
        primary.configure(synchronous_standby_names="absent")
        until(lambda: holds <= sessions(_WAITING))
        kill(leader)
        # The server does not notice that the client has gone.
        until(lambda: not leader._thread or not leader._thread.is_alive())
        assert sessions(_LOCKED.format(epoch)) == holds
        other.stand(True)
        until(lambda: not holds & sessions(_WAITING))
        primary.configure(synchronous_standby_names="")
        until(lambda: other.epoch)
