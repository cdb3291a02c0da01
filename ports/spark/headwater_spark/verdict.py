"""Judge a summary of tables in words: what is wrong, what needs a look, and the likely cause of each gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headwater_spark.overview import NO_BOARD, Board, Gap, Overview
from headwater_spark.tally import HOUR_NS

#: Levels of findings, the worst first.
LEVELS = ("bad", "look", "ok")
# Boards that one kind of finding names.
_NAMED = 5
# Characters of a name.
_LONGEST_NAME = 80
# Least silence of a board that the verdict names: in ns, and in intervals between its messages.
_SILENT_NS = 600 * 10**9
_SILENT_INTERVALS = 10
# A board was offline if a gap takes this number of times as long as its messages would.
_OFFLINE = 3
_OFFLINE_NS = 10**9


class Finding(NamedTuple):
    """A sentence of the verdict, and its level."""

    level: str
    text: str


def verdict(found: Overview) -> list[Finding]:
    """Return the sentences of the verdict, the worst first."""
    if not found.boards:
        return [Finding("look", "There are no messages in this span of time.")]
    boards = [board for board in found.boards if board.name is not None]
    findings = [
        *_lost(boards),
        *_missing(boards),
        *_refused(found),
        *_silent(boards, found.last_ns),
        *_restarts(boards),
        *_incomplete(found),
        *_duplicates(found.boards),
    ]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def headline(findings: Sequence[Finding]) -> str:
    """Return the verdict in one line."""
    worst = findings[0].level
    count = sum(finding.level == worst for finding in findings)
    heads = {
        "bad": plural(count, "serious problem"),
        "look": plural(count, "thing to look at", "things to look at"),
        "ok": "All is well",
    }
    return heads[worst]


def _lost(boards: Sequence[Board]) -> Iterator[Finding]:
    for board in boards:
        if board.lost:
            yield Finding(
                "bad",
                f"{plural(board.lost, 'acknowledged message')} of {label(board.name)} {verb(board.lost)} lost: "
                "in the board's own record, but not in the tables.",
            )
    acknowledged = sum(board.acknowledged or 0 for board in boards)
    if acknowledged and not any(board.lost for board in boards):
        yield Finding(
            "ok", f"All {acknowledged:,} acknowledged messages of the boards' own records are stored."
        )


def _missing(boards: Sequence[Board]) -> Iterator[Finding]:
    lacking = sorted((board for board in boards if board.missing), key=lambda board: -board.missing)
    missing = sum(board.missing for board in lacking)
    total = missing + sum(board.messages for board in boards)
    if not boards:
        yield Finding("look", "No message has an identity (board, boot, seq), so losses cannot be seen.")
    elif not missing:
        yield Finding("ok", f"The sequence numbers of {plural(len(boards), 'board')} have no gaps.")
    else:
        names = _names((board.name, board.missing) for board in lacking)
        why = ""
        if all(board.qos[0] for board in lacking):
            why = f" {'It sends' if len(lacking) == 1 else 'They send'} at QoS 0 too, which is not retransmitted."
        yield Finding(
            "look",
            f"{missing:,} of {total:,} messages ({percent(missing, total)} %) are missing by their sequence numbers: "
            f"{names}.{why}",
        )


def _refused(found: Overview) -> Iterator[Finding]:
    blocks = sum(count for kind, _, count in found.quarantine if kind == "block")
    if blocks:
        yield Finding("bad", f"{plural(blocks, 'block')} of the log {verb(blocks)} damaged.")
    reasons = [(reason, count) for kind, reason, count in found.quarantine if kind != "block"]
    if reasons:
        count = sum(count for _, count in reasons)
        yield Finding("look", f"{plural(count, 'row')} {verb(count)} in quarantine: {_names(reasons)}.")


def _silent(boards: Sequence[Board], now_ns: int) -> Iterator[Finding]:
    silent = sorted((board for board in boards if is_silent(board, now_ns)), key=lambda board: board.last_ns)
    for board in silent[:_NAMED]:
        yield Finding(
            "look",
            f"{label(board.name)} has been silent for {duration(now_ns - board.last_ns)}; before, it sent a message "
            f"every {duration(int(board.interval_ns))}.",
        )
    if len(silent) > _NAMED:
        yield Finding("look", f"{plural(len(silent) - _NAMED, 'more board')} fell silent.")


def _restarts(boards: Sequence[Board]) -> Iterator[Finding]:
    restarted = sorted((board for board in boards if board.restarts), key=lambda board: -board.restarts)
    if restarted:
        count = sum(board.restarts for board in restarted)
        names = _names((board.name, board.restarts) for board in restarted)
        yield Finding("look", f"{plural(count, 'restart')}: {names}.")


def _incomplete(found: Overview) -> Iterator[Finding]:
    count = found.logical["incomplete"]
    if count:
        yield Finding("look", f"{plural(count, 'logical message')} of IBM MQ {verb(count)} incomplete.")


def _duplicates(boards: Sequence[Board]) -> Iterator[Finding]:
    removed = sum(board.duplicates for board in boards)
    doubtful = sum(board.possible_duplicates for board in boards)
    if removed:
        yield Finding("ok", f"{plural(removed, 'duplicate')} {'was' if removed == 1 else 'were'} removed.")
    if doubtful:
        yield Finding("look", f"{plural(doubtful, 'message')} may be duplicates; no identity proves it.")


def _names(counted: Iterator[tuple[str | None, int]] | Sequence[tuple[str | None, int]]) -> str:
    """List the first names with their counts."""
    counted = list(counted)
    more = f", and {len(counted) - _NAMED} more" if len(counted) > _NAMED else ""
    return ", ".join(f"{label(name)} {count:,}" for name, count in counted[:_NAMED]) + more


def is_silent(board: Board, now_ns: int) -> bool:
    """Return whether a board that sent regularly has stopped."""
    least = max(_SILENT_NS, _SILENT_INTERVALS * board.interval_ns)
    return board.messages > 2 and now_ns - board.last_ns > least


def explain(gap: Gap, board: Board) -> str:
    """Return the likely cause of a gap, from the times around it and the board's QoS."""
    pause = gap.after_ns - gap.before_ns
    total = sum(board.qos.values())
    share = round(100 * board.qos[0] / total) if total else 0
    if pause > max(_OFFLINE_NS, _OFFLINE * gap.usual_ns * (gap.count + 1)):
        kept = (
            "messages at QoS 0 are not kept meanwhile"
            if board.qos[0]
            else "its store was full, or it has not sent them yet"
        )
        return f"offline for {duration(pause)}; {kept}"
    if board.qos[0]:
        return f"lost on the way at QoS 0, at which the board sends {share} % of its messages"
    return "never sent, or still in the board's store: it sends at QoS 1 and 2, which are retransmitted"


def printable(value: Any) -> str:
    """Return a value as text: numbers rounded, and unprintable characters replaced, because names are untrusted."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def label(name: str | None) -> str:
    """Return a name of a board (None: no identity), value or topic for a reader: printable, short and never blank."""
    if name is None:
        return NO_BOARD
    text = printable(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")
    return text if text.strip() else f'"{text}"'


def percent(part: int, whole: int) -> str:
    """Return a share in percent, with two significant digits below 10 %."""
    share = 100 * part / whole
    return f"{share:.2g}" if share < 10 else f"{share:.0f}"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def verb(count: int) -> str:
    """Return the verb of a count."""
    return "is" if count == 1 else "are"


def duration(ns: int) -> str:
    """Return a length of time in at most two units."""
    if ns < 10**9:
        return f"{ns / 1e6:.0f} ms"
    if ns < 60 * 10**9:
        return f"{ns / 1e9:.3g} s"
    minute = HOUR_NS // 60
    for unit, of, size, rest in (
        ("d", 24 * HOUR_NS, HOUR_NS, "h"),
        ("h", HOUR_NS, minute, "min"),
        ("min", minute, 10**9, "s"),
    ):
        if ns >= of:
            small = ns % of // size
            return f"{ns // of} {unit} {small} {rest}" if small else f"{ns // of} {unit}"
    raise AssertionError(ns)
