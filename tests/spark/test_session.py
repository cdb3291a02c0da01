"""Sessions of Spark on this machine."""

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os
from headwater_spark.session import local_session

session = local_session("test", "local[1]")


def where(batches):
    import pyarrow, pyspark

    for batch in batches:
        yield pyarrow.record_batch({"path": [pyspark.__file__] * len(batch)})


print(session.range(1).mapInArrow(where, "path string").first().path)
print(os.environ["SPARK_HOME"])
session.stop()
"""


def test_workers_import_the_installed_pyspark(tmp_path: Path) -> None:
    """From `pyspark.zip`, each would compile it anew."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    path, home = done.stdout.splitlines()
    assert path.endswith("site-packages/pyspark/__init__.py")
    assert Path(home).parent == tmp_path
    assert not Path(home).exists()
