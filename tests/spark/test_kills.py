"""Processes that are killed leave the tables of those that are left alone; `tests.spark.kills` kills more of them."""

from pathlib import Path

import pytest

from tests.object_store import Bucket
from tests.rows import each_row
from tests.spark.kills import MUTANTS, PLAIN, Moment, disturb

pytestmark = pytest.mark.timeout(900)


def test_batches_compactions_and_shipments_to_an_object_store(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.options.items():
        monkeypatch.setenv(name, value)
    named = (Moment("commit", False), Moment("copy", True))
    found = disturb(tmp_path, bucket, kills=3, named=named, kinds=PLAIN)
    assert sum(found.killed.values()) == 3 + 4


@pytest.mark.needs_java
def test_batches_and_streams_of_spark(tmp_path: Path) -> None:
    # Spark has stored a micro-batch's offsets before the first moment, but not after the second that it is complete.
    named = (Moment("micro-batch", False), Moment("micro-batch", True))
    found = disturb(tmp_path, kills=2, named=named, kinds=("run", "stream"), seed=4)
    assert sum(found.killed.values()) == 2 + 2


@each_row("mutant", list(MUTANTS))
def test_a_defect_is_found(tmp_path: Path, mutant: str) -> None:
    # The second process completes the batch of the first one.
    named = [Moment("files", False), Moment("position", True)]
    with pytest.raises(AssertionError):
        disturb(tmp_path, named=named, kinds=("grow",), mutant=mutant)
