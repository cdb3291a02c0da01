"""Report a run: as numbers (`report.json`), with its tables as a page (`report.html`), and as text.

`compare` compares the table `messages` with the boards' own records of what they sent.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from headwater_host.capture.filesystem import Location
from headwater_host.capture.format import PROTOCOLS
from headwater_host.progress import Display
from headwater_spark import arrow, delta, page, records
from headwater_spark.buckets import KINDS
from headwater_spark.overview import NO_BOARD, Options, overview
from headwater_spark.place import Place
from headwater_spark.records import Record
from headwater_spark.stats import Stat, Stats, percentile
from headwater_spark.tables import FRAMES
from headwater_spark.verdict import Finding, label, printable, verdict

if TYPE_CHECKING:
    import os

    from headwater_spark.result import Result


@dataclass(frozen=True)
class BoardRow:
    """One board. `gaps` are sequence numbers missing within one start. Latencies are in ms."""

    board: str
    starts: int
    received: int
    stored: int
    duplicates: int
    gaps: int | None
    p50_ms: float | None
    p99_ms: float | None
    first: str | None
    last: str | None


@dataclass(frozen=True)
class Compared:
    """One board's own record compared with the table `messages`.

    `lost` messages were acknowledged at QoS 1 or 2 and are not stored. `duplicates_left` are rows beyond the first
    of a message.
    """

    board: str
    sent: int
    acknowledged: int
    stored: int
    duplicates_removed: int
    duplicates_left: int
    lost: int
    p50_ms: float | None
    p99_ms: float | None


def _time(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 10**6:03d}Z"


def board_rows(stats: Stats) -> list[BoardRow]:
    """Return the boards by name, with messages without an identity last."""
    starts: dict[str | None, list[Stat]] = defaultdict(list)
    for (board, _), stat in stats.items():
        starts[board].append(stat)
    return [
        _board_row(board, starts[board]) for board in sorted(starts, key=lambda name: (name is None, name))
    ]


def _board_row(board: str | None, starts: Sequence[Stat]) -> BoardRow:
    stored = [stat for stat in starts if stat.stored]
    latency: Counter[int] = Counter()
    for stat in starts:
        latency.update(stat.latency)
    received, kept = sum(stat.received for stat in starts), sum(stat.stored for stat in starts)
    return BoardRow(
        board=NO_BOARD if board is None else board,
        starts=0 if board is None else len(starts),
        received=received,
        stored=kept,
        duplicates=received - kept,
        gaps=None if board is None else sum(max(0, s.high - s.low + 1 - s.stored) for s in stored),
        p50_ms=percentile(latency, 0.5),
        p99_ms=percentile(latency, 0.99),
        first=_time(min(stat.first_ns for stat in stored)) if stored else None,
        last=_time(max(stat.last_ns for stat in stored)) if stored else None,
    )


def summary(result: Result) -> dict[str, Any]:
    """Return a run's numbers for JSON."""
    log = result.plan
    return {
        "capture": ", ".join(map(str, result.captures)),
        "completed": list(result.completed),
        "segments": log.segments,
        "blocks": log.blocks,
        "bytes": log.bytes,
        "records": log.records,
        "parts": len(log.partitions),
        "parts_settled_again": result.again,
        "rows_brought_together": result.candidates,
        "seconds": round(result.seconds, 3),
        "frames_per_second": round(log.records / result.seconds) if result.seconds else None,
        "tables": dict(result.rows),
        "protocols": [
            {
                "protocol": PROTOCOLS.get(protocol, str(protocol)),
                "frames": frames,
                "messages": result.messages[protocol],
            }
            for protocol, frames in sorted(result.frames.items())
        ],
        "logical_messages": {kind: result.logical[kind] for kind in KINDS if result.logical[kind]},
        "duplicates_removed": result.duplicates,
        "possible_duplicates": result.possible_duplicates,
        "quarantined": dict(result.quarantined),
        "undecoded": [
            {"protocol": protocol, "version": version, "frames": n}
            for (protocol, version), n in sorted(result.undecoded.items())
        ],
        "problems": [problem._asdict() for problem in result.problems],
        "boards": [asdict(row) for row in board_rows(result.stats)],
        "compared": None,
    }


def compare(messages: Location | Place, sent: Iterable[str | os.PathLike[str]]) -> list[Compared]:
    """Compare each board's own record with the table in the directory `messages`.

    `sent` are files of the form that `headwater_spark.records` describes.
    """
    found = records.read(sent)
    columns = ["board", "boot", "seq", "copies", "time_ns", "sent_ns"]
    table = delta.dataset_at(Place.at(messages)).to_table(columns=columns)
    table = table.filter(pc.is_valid(table["board"]))
    boards = sorted(found.keys() | set(pc.unique(table["board"]).to_pylist()))
    return [
        _compare(board, found.get(board, Record()), table.filter(pc.equal(table["board"], board)))
        for board in boards
    ]


def _compare(board: str, record: Record, rows: Any) -> Compared:
    keys = set(zip(rows["boot"].to_pylist(), rows["seq"].to_pylist(), strict=True))
    timed = rows.filter(pc.is_valid(rows["sent_ns"]))
    latencies = np.sort((arrow.numbers(timed["time_ns"]) - arrow.numbers(timed["sent_ns"])) / 1e6)

    def at(percent: int) -> float | None:
        return float(latencies[max(0, -(-percent * len(latencies) // 100) - 1)]) if len(latencies) else None

    return Compared(
        board=board,
        sent=len(record.sent),
        acknowledged=len(record.acknowledged),
        stored=len(keys),
        duplicates_removed=int(arrow.numbers(rows["copies"]).sum()) - rows.num_rows,
        duplicates_left=rows.num_rows - len(keys),
        lost=len(record.lost(keys)),
        p50_ms=at(50),
        p99_ms=at(99),
    )


def write(
    result: Result, out: Location | Place, sent: Sequence[str | os.PathLike[str]] = ()
) -> dict[str, Any]:
    """Write a run's report beside its tables and return its numbers. `sent` are the boards' own records."""
    folder = Place.at(out)
    numbers = summary(result)
    if sent:
        numbers["compared"] = [asdict(row) for row in compare(folder / "messages", sent)]
    (folder / "report.json").write((json.dumps(numbers, indent=1) + "\n").encode())
    sections: list[tuple[str, Sequence[dict[str, Any]]]] = [
        ("Comparison with the boards' own records", _labelled(numbers["compared"] or ())),
        ("Rows written by this run", _counted(numbers["tables"], "table")),
        ("Protocols", numbers["protocols"]),
        ("Undecoded frames", numbers["undecoded"]),
        ("Problems of the log", numbers["problems"]),
    ]
    write_page(folder, folder / "report.html", title=numbers["capture"], sections=sections)
    return numbers


def write_page(
    tables: Location | Place,
    page_at: Location | Place,
    options: Options | None = None,
    *,
    title: str = "",
    sections: Sequence[tuple[str, Sequence[dict[str, Any]]]] = (),
    display: Display | None = None,
) -> list[Finding]:
    """Write a page about the tables in `tables` to a file and return its verdict. `display` shows what takes long.

    `sections` are titles and rows of further tables. Raises FileNotFoundError when a table does not exist,
    UnknownBoardError for a board without messages in the span.
    """
    found = overview(tables, options, display)
    Place.at(page_at).write(page.render(found, title or str(tables), sections).encode())
    return verdict(found)


def _labelled(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"board": label(row["board"])} for row in rows]


def _counted(counts: dict[str, int], name: str) -> list[dict[str, Any]]:
    return [{name: key, "rows": n} for key, n in counts.items()]


def headline(numbers: dict[str, Any]) -> str:
    """Summarize a run that read frames in one sentence."""
    tables = numbers["tables"]
    logical = ", ".join(
        f"{n} {'logical messages ' if k == 0 else ''}{kind}"
        for k, (kind, n) in enumerate(numbers["logical_messages"].items())
    )
    doubtful = numbers["possible_duplicates"]
    kept = f" ({doubtful} may be duplicates)" if doubtful else ""
    return (
        f"{tables.get('frames', 0)} frames in {numbers['blocks']} blocks became "
        f"{tables.get('messages', 0)} messages{kept}; "
        f"{numbers['duplicates_removed']} duplicates removed, {tables.get('quarantine', 0)} rows in quarantine, "
        f"{tables.get('telemetry', 0)} values; {logical}{'; ' if logical else ''}{numbers['seconds']:.1f} s."
    )


def up_to_date(out: Place, completed: Sequence[int] = ()) -> str:
    """Say, for a run that found nothing to read, how far the tables are, and which batches it has completed."""
    ends = [file.last_ns for file in delta.live(out, FRAMES).files if file.last_ns is not None]
    last = f" up to the last frame, received at {_time(max(ends))}" if ends else ": no frames"
    done = "".join(f"Completed batch {number}, which was interrupted. " for number in completed)
    new = "Nothing else is new" if completed else "Nothing new"
    return f"{done}{new}: the tables have everything that the logs have{last}."


def _cell(value: Any) -> str:
    return label(value) if isinstance(value, str) else printable(value)


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows, at least one, as aligned text with their keys as the header."""
    head = list(rows[0])
    cells = [head, *([_cell(row[name]) for name in head] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(head))]
    left = [isinstance(rows[0][name], str) for name in head]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in cells
    )
