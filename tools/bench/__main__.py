"""`./run bench [NAMES]`: run benchmarks, by default all, and print their tables.

`--write` writes the tables to `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tools.bench import board, gateway, host, hub, report
from tools.bench.clients import CLIENTS
from tools.bench.hubs import servers
from tools.bench.report import Table
from tools.broker import BrokerError

#: Benchmarks in one module with ``run() -> list of rows``, a row mapping columns to values. A `run` may have the
#: arguments ``quick`` and ``beside``.
MODULES = {
    "assembly": "tools.bench.assembly",
    "capture": "tools.bench.capture",
    "spark": "tools.bench.spark",
    "spark-decoders": "tools.bench.spark_decoders",
    "spark-mq": "tools.bench.spark_mq",
    "spark-scale": "tools.bench.spark_scale",
    "spark-stream": "tools.bench.spark_stream",
    "wire": "tools.bench.wire",
}


def available() -> list[str]:
    """List the names of the benchmarks."""
    return [*WITH_CLIENTS, *(name for name, module in MODULES.items() if importlib.util.find_spec(module))]


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _measured(module: Any, rows: Iterable[str], options: argparse.Namespace) -> tuple[object, list[Table]]:
    effort = module.QUICK if options.quick else module.Effort()
    if options.rounds:
        effort = replace(effort, rounds=options.rounds)
    wanted = tuple(name for name in rows if not options.clients or name in options.clients)
    figures = module.measure(effort, wanted, _say)
    return asdict(figures), module.tables(figures)


def _module(name: str, options: argparse.Namespace) -> tuple[object, list[Table]]:
    module = importlib.import_module(MODULES[name])
    takes = inspect.signature(module.run).parameters
    given = {option: getattr(options, option) for option in ("quick", "beside") if option in takes}
    rows = [dict(row) for row in module.run(**given)]
    title = (module.__doc__ or name).strip().partition("\n")[0]
    columns = list(rows[0]) if rows else [name]
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    return rows, [Table(title, columns, list(cells))]


#: Benchmarks with clients and options: their modules and rows.
WITH_CLIENTS: dict[str, tuple[Any, Iterable[str]]] = {
    "board": (board, CLIENTS),
    "gateway": (gateway, gateway.ROWS),
    "host": (host, host.CLIENTS),
    "hub": (hub, servers.ROWS),
}


FAILURES = (
    FileNotFoundError,
    BrokerError,
    board.DeviceError,
    gateway.GatewayError,
    host.ClientError,
    hub.HubError,
)


def _rounds(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested benchmarks and return the exit status."""
    names = available()
    parser = argparse.ArgumentParser(prog="./run bench", description="Benchmarks beside other clients.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="run one short round")
    parser.add_argument(
        "--rounds",
        type=_rounds,
        help=f"number of rounds, for {', '.join(WITH_CLIENTS)}",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables to docs/{report.DOCUMENT.name}"
    )
    parser.add_argument(
        "--client",
        action="append",
        dest="clients",
        choices=list(dict.fromkeys([*CLIENTS, *host.CLIENTS, *servers.ROWS, *gateway.ROWS])),
        help="measure only this client or server; repeatable",
    )
    parser.add_argument("--beside", metavar="COMMIT", default="", help="spark: measure this commit as well")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in names:
            parser.error(f"unknown benchmark {name!r}: choose from {', '.join(names)}")
    results = {}
    for name in options.names or names:
        _say(name)
        try:
            known = WITH_CLIENTS.get(name)
            figures, tables = _measured(*known, options) if known else _module(name, options)
        except FAILURES as error:
            _say(f"{name}: {error}")
            return 1
        results[name] = figures
        if not options.json:
            print("\n\n".join(report.text(table) for table in tables), end="\n\n")
        if options.write:
            report.put(name, "\n\n".join(report.markdown(table) for table in tables))
    if options.json:
        print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
