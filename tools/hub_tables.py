"""Write the tables of docs/hub.md from the hub's code: its refusals and its metrics."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from headwater.names5 import CODES
from headwater_host.hub.broker import Broker
from headwater_host.hub.config import HubConfig
from headwater_host.hub.metrics import Metric
from headwater_host.hub.refusals import REFUSALS
from headwater_host.hub.storage import Store


def refusals() -> str:
    """Write the table of refusals."""
    lines = ["| code | answers | when |", "|---|---|---|"]
    before = -1
    for row in REFUSALS:
        code = f"0x{row.code:02X} {CODES[row.code].replace('_', ' ')}" if row.code != before else ""
        lines.append(f"| {code} | {row.answers} | {row.when} |".replace("|  |", "| |"))
        before = row.code
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Write the table of metrics."""
    lines = ["| metric | labels | |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {', '.join(one.labels)} | {one.text} |" for one in asyncio.run(_metrics())]
    return "\n".join(lines).replace("|  |", "| |") + "\n"


async def _metrics() -> list[Metric]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "hub.db")
        broker = Broker(store, HubConfig())
        broker.stop()
        await store.close()
        return list(broker.metrics)


def drawings() -> Mapping[str, Callable[[], str]]:
    """Return the tables by the names of their places."""
    return {"hub-refusals": refusals, "hub-metrics": metrics}
