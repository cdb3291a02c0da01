"""Write the lists of docs/hub.md from the hub's code: its refusals and its metrics."""

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
    """List the refusals by reason code and by what they answer."""
    found: dict[int, dict[str, list[str]]] = {}
    for row in REFUSALS:
        found.setdefault(row.code, {}).setdefault(row.answers.replace("*", "\\*"), []).append(row.when)
    lines = []
    for code, answers in found.items():
        lines.append(f"- **0x{code:02X} {CODES[code].replace('_', ' ')}**")
        lines += [f"  - {answer}: {'; '.join(when)}" for answer, when in answers.items()]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """List the metrics with their labels."""
    found = asyncio.run(_metrics())
    names = [one.name + (f"{{{','.join(one.labels)}}}" if one.labels else "") for one in found]
    width = max(map(len, names))
    lines = [f"{name:{width}}  {one.text.rstrip('.')}" for name, one in zip(names, found, strict=True)]
    return "\n".join(["```text", *lines, "```", ""])


async def _metrics() -> list[Metric]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "hub.db")
        broker = Broker(store, HubConfig())
        broker.stop()
        await store.close()
        return list(broker.metrics)


def drawings() -> Mapping[str, Callable[[], str]]:
    """Return the lists by the names of their places."""
    return {"hub-refusals": refusals, "hub-metrics": metrics}
