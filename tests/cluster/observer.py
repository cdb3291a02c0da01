"""Which epochs got a write through: recorded by triggers in the hubs' database, and checked.

A hub's transaction moves the turn of the row `leader`; its changes are one INSERT. The triggers record both, with the
name of the connection, which contains the writer's epoch. They write in the same transaction, so that only what is
committed is recorded.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tools.postgres import PostgreSql

_TRIGGERS = """
CREATE TABLE observed (n bigserial, what text, epoch bigint, turn bigint, writer text);
CREATE FUNCTION observe_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO observed (what, epoch, turn, writer)
    VALUES ('turn', NEW.epoch, NEW.turn, current_setting('application_name'));
    RETURN NULL; END $$;
CREATE FUNCTION observe_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO observed (what, epoch, turn, writer)
    SELECT 'write', epoch, turn, current_setting('application_name') FROM leader;
    RETURN NULL; END $$;
CREATE TRIGGER observe AFTER UPDATE ON leader FOR EACH ROW
    WHEN (OLD.turn <> NEW.turn OR OLD.epoch <> NEW.epoch) EXECUTE FUNCTION observe_turn();
CREATE TRIGGER observe AFTER INSERT ON messages FOR EACH STATEMENT EXECUTE FUNCTION observe_write();
"""
_EPOCH = re.compile(r"epoch (\d+)")


class Observed(NamedTuple):
    """A committed turn or write: the row `leader` then, and the epoch that the writer's connection names."""

    what: str
    epoch: int
    turn: int
    writer: int | None


def install(server: PostgreSql) -> None:
    """Record from now on. The hubs' tables must exist."""
    server.sql(_TRIGGERS)


def observed(server: PostgreSql) -> list[Observed]:
    """Return everything that was recorded, in its order: the row `leader` is locked until each COMMIT."""
    found = []
    for line in server.sql("SELECT what, epoch, turn, writer FROM observed ORDER BY n").splitlines():
        what, epoch, turn, writer = line.split("|", 3)
        named = _EPOCH.search(writer)
        found.append(Observed(what, int(epoch), int(turn), int(named[1]) if named else None))
    return found


def two_leaders(rows: Iterable[Observed]) -> list[str]:
    """Return what contradicts one leader at a time, each with all turns of its epoch in order."""
    wrong = []
    epoch = turn = -1
    wrote: set[tuple[int, int]] = set()
    for row in rows:
        if row.writer is not None and row.writer != row.epoch:
            wrong.append(f"two leaders: epoch {row.writer} writes in epoch {row.epoch}, turn {row.turn}")
        if row.what == "turn":
            follows = row.turn == turn + 1 if row.epoch == epoch else row.epoch > epoch and row.turn == 0
            if epoch >= 0 and not follows:
                wrong.append(
                    f"two leaders: turn {row.turn} of epoch {row.epoch} follows turn {turn} of {epoch}"
                )
            epoch, turn = row.epoch, row.turn
        elif (row.epoch, row.turn) in wrote:
            wrong.append(f"doubled: turn {row.turn} of epoch {row.epoch} is written twice")
        else:
            wrote.add((row.epoch, row.turn))
    return wrong
