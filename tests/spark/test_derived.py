"""The derived tables may be brought up to date later: then they are those of one batch as well."""

from pathlib import Path

from headwater_spark.growth import compact, grow
from headwater_spark.tables import DEVICE_HEALTH, RECONCILIATION
from tests.spark.logs import InProcess, Rec, assert_same_tables, publish, reading, rows, write_log

HOUR = 3_600_000


def test_batches_may_leave_the_update_to_a_later_one(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"

    def batch(number: int, every: float) -> list[int]:
        """Add messages of three hours, and return the stored ones by hour."""
        records = [
            Rec(publish("t", reading("b", 1, 100 * number + k)), at=(number + k) * HOUR + k) for k in range(3)
        ]
        write_log(log, [records])
        grow(InProcess(), [log], out, derive_every_s=every)
        return rows(out, DEVICE_HEALTH, "messages")

    assert batch(0, 1e9) == [1, 1, 1]  # there was no update yet
    assert batch(1, 1e9) == [1, 1, 1]
    assert batch(2, 1e9) == [1, 1, 1]
    assert sum(batch(3, 0)) == 12
    assert sum(batch(4, 1e9)) == 12
    compact(InProcess(), out)
    assert sum(batch(6, 1e9)) == 12
    assert sum(batch(5, 0)) == 21
    assert rows(out, RECONCILIATION, "stored") == [21]
    grow(InProcess(), [log], tmp_path / "one")
    assert_same_tables(out, tmp_path / "one")
