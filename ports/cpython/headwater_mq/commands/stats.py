"""headwater mq stats: counts and gaps of queues."""

import argparse
import json
import sqlite3
from itertools import groupby
from operator import itemgetter
from typing import Any

from headwater_host.exits import OK
from headwater_host.inspect.mq import reason_name
from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import failed
from headwater_host.mq.fields import IN_GROUP, SEGMENT
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.verdicts import Segment, Verdict, judge
from headwater_mq import messages
from headwater_mq.commands.output import Got
from headwater_mq.manager import QueueManager
from headwater_mq.messages import DamagedError, is_number

#: Missing ranges of one group that are listed at most.
_RANGES = 20
#: Messages that are available, in SQL.
_THERE = "queue = ? AND taken_by = 0 AND put_by = 0 AND aside = 0"
# Format is at offset 32 of an MQMD.
_COUNTS = f"""
SELECT count(*) FILTER (WHERE {_THERE}), coalesce(sum({messages.LENGTH}) FILTER (WHERE {_THERE}), 0),
 count(*) FILTER (WHERE put_by OR taken_by), count(*) FILTER (WHERE {_THERE} AND substr(md, 33, 8) = ?)
FROM messages WHERE queue = ?
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--json", action="store_true", help="Print a JSON object for each queue")


def run(args: argparse.Namespace) -> int:
    """Print the statistics of one queue or of all."""
    with QueueManager(path=args.store, create=False) as manager:
        names = manager.queues()
        if args.queue is not None and args.queue not in names:
            raise failed(CMQC.MQRC_UNKNOWN_OBJECT_NAME, f"{args.queue} is not defined in {args.store}")
        for name, attributes in names.items():
            if attributes.QType == CMQC.MQQT_LOCAL and args.queue in (None, name):
                with manager.file.reading() as db:
                    row = db.execute("SELECT id FROM queues WHERE name = ?", (name,)).fetchone()
                    if row is None:
                        # Another process has deleted it.
                        continue
                    said = of_queue(db, row[0])
                print(json.dumps({"queue": name} | said) if args.json else lines(name, said))
        if args.queue is None:
            _show_assembly(manager, args.json)
    return OK


def _show_assembly(manager: QueueManager, as_json: bool) -> None:
    """Print incomplete messages of a gateway's reassembly, which are in no queue yet."""
    with manager.file.reading() as db:
        if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'assembly_group'").fetchone():
            return
        found = list(Assembler(db).incomplete())
    if found and as_json:
        print(json.dumps({"reassembly": [one.as_dict() for one in found]}))
    elif found:
        print("\n    ".join([f"in reassembly, incomplete: {len(found)}", *map(str, found)]))


def of_queue(db: sqlite3.Connection, queue: int) -> dict[str, Any]:
    """Return the statistics of a queue for JSON, within the caller's transaction."""
    dead = CMQC.MQFMT_DEAD_LETTER_HEADER
    depth, size, open_work, letters = db.execute(_COUNTS, (queue, queue, queue, dead, queue)).fetchone()
    aside = db.execute(
        f"SELECT {messages.REASON}, count(*) FROM messages WHERE queue = ? AND aside IS NOT 0 GROUP BY 1",
        (queue,),
    ).fetchall()
    return {
        "messages": depth,
        "bytes": size,
        "oldest": _oldest(db, queue),
        "in_units_of_work": open_work,
        "dead_letters": letters,
        "set_aside": {str(reason): count for reason, count in aside},
        **_groups(db, queue),
    }


def _oldest(db: sqlite3.Connection, queue: int) -> str | None:
    whole = "typeof(md) = 'blob' AND length(md) = ?"
    query = f"SELECT md FROM messages WHERE {_THERE} AND {whole} ORDER BY id LIMIT 1"
    row = db.execute(query, (queue, CMQC.MQMD_LENGTH_2)).fetchone()
    return Got("", MD.unpack(row[0]), b"").put() if row else None


def _groups(db: sqlite3.Connection, queue: int) -> dict[str, Any]:
    """Count complete groups and segmented messages; list incomplete and contradictory ones."""
    found: dict[str, Any] = {
        "groups": {"complete": 0, "incomplete": []},
        "segmented": {"complete": 0, "incomplete": []},
    }
    rows = db.execute(
        f"SELECT group_id, id, seq, place, length, flags FROM messages "
        f"WHERE {_THERE} AND typeof(group_id) = 'blob' AND flags & ? ORDER BY group_id",
        (queue, IN_GROUP | SEGMENT),
    )
    for group_id, members in groupby(rows, itemgetter(0)):
        of_group = [row[1:] for row in members]
        grouped = any(is_number(row[-1]) and row[-1] & IN_GROUP for row in of_group)
        kind = found["groups" if grouped else "segmented"]
        try:
            verdict = _judged(db, of_group)
        except DamagedError:
            size = sum(row[3] for row in of_group if is_number(row[3]))
            text = "a message is damaged (2101 MQRC_OBJECT_DAMAGED)"
            said = {"group_id": group_id.hex(), "bytes": size, "text": text}
            kind["incomplete"].append(said | Verdict(CMQC.MQRC_OBJECT_DAMAGED).as_dict())
            continue
        if verdict.complete:
            kind["complete"] += 1
        else:
            said = {"group_id": group_id.hex(), "bytes": verdict.length, "text": str(verdict)}
            kind["incomplete"].append(said | verdict.as_dict())
    return found


def _judged(db: sqlite3.Connection, rows: list[tuple[int, int, int, int, int]]) -> Verdict:
    """Judge the messages of one GroupId: rows of (id, MsgSeqNumber, Offset, length, MsgFlags). Raises DamagedError."""
    for number, *values in rows:
        messages.check_numbers(number, values)
    segments = [Segment(*row[1:], *messages.written(db, row[0])) for row in rows]
    return judge(segments, lambda index: messages.read(db, rows[index][0], 0).body, _RANGES)


def lines(name: str, said: dict[str, Any]) -> str:
    """Return the statistics of a queue as text."""
    parts = [_many(said["messages"], "message"), _many(said["bytes"], "byte")]
    if said["oldest"]:
        parts.append(f"the oldest from {said['oldest']}")
    if said["in_units_of_work"]:
        parts.append(f"{said['in_units_of_work']} in units of work")
    if said["dead_letters"]:
        parts.append(_many(said["dead_letters"], "dead letter"))
    for reason, count in said["set_aside"].items():
        parts.append(f"{count} set aside: {reason} {reason_name(int(reason))}")
    found = [f"{name}: {', '.join(parts)}"]
    for kind, words in (("groups", "groups"), ("segmented", "segmented messages")):
        complete, incomplete = said[kind]["complete"], said[kind]["incomplete"]
        if complete or incomplete:
            found.append(f"  {words}: {complete} complete, {len(incomplete)} incomplete")
        found += [f"    {one['group_id']}: {one['text']}" for one in incomplete]
    return "\n".join(found)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
