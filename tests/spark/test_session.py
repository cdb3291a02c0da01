"""Sessions of Spark on this machine."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater_spark.session import link_spark

_PROGRAM = """
import os
from headwater_spark.session import local_session

session = local_session("test", "local[1]")


def where(batches):
    import pyarrow, pyspark

    for batch in batches:
        yield pyarrow.record_batch({"path": [pyspark.__file__] * len(batch)})


print(session.range(1).mapInArrow(where, "path string").first().path)
print(session.sparkContext._jvm.System.getenv("SPARK_HOME"))
print(os.environ.get("SPARK_HOME"))
session.stop()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is taken for that of PySpark."""
    spark = tmp_path / "pyspark"
    (spark / "jars").mkdir(parents=True)
    (spark / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location("pyspark", spark / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return spark


def test_settings_beside_pyspark_count(tmp_path: Path, installed: Path) -> None:
    home = tmp_path / "home"
    (installed / "conf").mkdir()
    (installed / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 2g")
    assert link_spark(home)
    assert (home / "conf" / "spark-defaults.conf").exists()
    assert sorted(link.name for link in home.iterdir()) == ["conf", "jars"]


def _start(cache: Path) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_workers_import_the_installed_pyspark(tmp_path: Path) -> None:
    """From `pyspark.zip`, each would compile it again."""
    path, home, left = _start(tmp_path)
    assert path.endswith("site-packages/pyspark/__init__.py")
    assert Path(home).parent == tmp_path / "headwater"
    assert left == "None", "other programs are to find their own Spark"


def test_spark_starts_without_a_cache_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "headwater").touch()
    path, home, _ = _start(tmp_path)
    assert "pyspark" in path
    assert home.endswith("site-packages/pyspark"), "it uses the one that is installed"


def test_a_link_follows_what_is_beside_pyspark(tmp_path: Path, installed: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "jars").symlink_to(tmp_path / "elsewhere")
    (home / "conf").symlink_to(installed / "conf")
    assert link_spark(home)
    assert (home / "jars").readlink() == installed / "jars"
    assert not (home / "conf").is_symlink()
