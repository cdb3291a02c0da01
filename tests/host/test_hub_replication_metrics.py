"""Metrics and health of replication: what an operator's alarms need."""

import asyncio
import re
from pathlib import Path

from tests.host.hub_sites import Sites, sites
from tests.host.test_hub_site import publish
from tests.waiting import until


def value(hubs: Sites, name: str, metric: str) -> float:
    """A metric of a hub; ``metric`` with its labels."""
    text = hubs[name].front.metrics.text()
    found = re.search(rf"^headwater_hub_{re.escape(metric)} (\S+)$", text, re.MULTILINE)
    assert found, f"{metric} is not in:\n{text}"
    return float(found[1])


async def test_they_say_how_far_the_slaves_are(tmp_path: Path) -> None:
    async with sites(tmp_path) as hubs:
        await hubs.start("a", "b")
        publishing = asyncio.create_task(publish(hubs, "a", "t", b"one"))
        await hubs.connected("a", "b")
        await until(lambda: value(hubs, "a", 'slave_lag_changes{slave="b"}') == 0)
        await until(lambda: value(hubs, "a", "unconfirmed_changes") > 0)
        assert "1 of the 2 slaves that confirm are not connected" in hubs["a"].health()
        assert value(hubs, "a", "sync_missing") == 1
        assert (await hubs.call("a"))["problem"] == hubs["a"].health()
        assert value(hubs, "a", 'slave_connected{slave="b"}') == 1
        assert value(hubs, "a", 'slave_connected{slave="c"}') == 0
        assert value(hubs, "a", 'slave_position{slave="b"}') == hubs["a"].store.durable
        assert value(hubs, "a", 'slave_position{slave="c"}') == 0
        assert value(hubs, "a", 'slave_lag_changes{slave="c"}') == hubs["a"].store.durable
        before = value(hubs, "a", 'slave_lag_seconds{slave="c"}')
        await until(lambda: value(hubs, "a", 'slave_lag_seconds{slave="c"}') > before)
        assert value(hubs, "a", 'slave_lag_seconds{slave="b"}') == 0
        assert not publishing.done()
        await hubs.start("c")
        await publishing
        for name in "bc":
            await until(lambda name=name: value(hubs, "a", f'slave_lag_changes{{slave="{name}"}}') == 0)  # type: ignore[misc]
            await until(lambda name=name: value(hubs, name, "lag_changes") == 0)  # type: ignore[misc]
            assert value(hubs, name, "leader_connected") == 1
            assert hubs[name].health() == ""
        await until(lambda: value(hubs, "a", "unconfirmed_changes") == 0)
        assert value(hubs, "a", "sync_missing") == 0
        assert hubs["a"].health() == ""
        # A slave that is cut off cannot know what it lacks; the time since it had everything grows.
        await hubs.stop("a")
        await until(lambda: value(hubs, "b", "leader_connected") == 0)
        before = value(hubs, "b", "lag_seconds")
        await until(lambda: value(hubs, "b", "lag_seconds") > before)
        assert "not connected to the leader" in hubs["b"].health()


async def test_the_lag_counts_from_the_first_missing_change(tmp_path: Path) -> None:
    """Not from the change before, which may be an hour old."""
    async with sites(tmp_path, "ab", sync=0) as hubs:
        await hubs.start()
        await publish(hubs, "a", "t", b"one")
        await hubs.equal("a", "b")
        leader, slave = hubs["a"]._slaves, hubs["b"]._follower
        assert leader is not None
        assert slave is not None
        # An hour without a change: both had everything then.
        leader._current["b"] -= 3600
        slave._current -= 3600
        lags: list[float] = []
        send = slave._send
        assert send is not None

        def acknowledged(data: bytes) -> None:
            lags.append(slave.lag_seconds)
            lags.append(value(hubs, "a", 'slave_lag_seconds{slave="b"}'))
            send(data)

        slave._send = acknowledged
        await publish(hubs, "a", "t", b"two")
        await hubs.equal("a", "b")
        assert lags
        assert max(lags) < 3000, lags
