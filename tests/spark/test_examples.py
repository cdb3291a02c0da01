"""The examples for spark-submit and Airflow."""

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headwater_host.cli.main import make_parser
from headwater_spark.tables import MESSAGES
from tests.spark.logs import Rec, publish, reading, rows, write_log

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"


@pytest.mark.needs_java
@pytest.mark.timeout(900)
def test_spark_submit(tmp_path: Path) -> None:
    import pyspark

    logs = [
        write_log(tmp_path / name, [[Rec(publish("t", reading(name, 1, seq)), at=seq) for seq in range(3)]])
        for name in ("one", "two")
    ]
    words = ["--master", "local[1]", EXAMPLES / "submit.py", tmp_path / "out", *logs]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [submit, *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "batch 1: 6 new messages in " in done.stdout
    assert rows(tmp_path / "out", MESSAGES, "board") == ["one"] * 3 + ["two"] * 3


def test_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the DAGs are valid. Airflow itself is replaced: it is not installed here."""
    commands: dict[str, str] = {}
    dags: list[str] = []

    class Dag:
        def __init__(self, name: str, **settings: Any) -> None:
            assert settings["max_active_runs"] == 1
            dags.append(name)

        def __enter__(self) -> "Dag":
            return self

        def __exit__(self, *error: object) -> None: ...

    def bash(task_id: str, bash_command: str) -> None:
        commands[task_id] = bash_command

    for name, content in (
        ("airflow", {"DAG": Dag}),
        ("airflow.operators", {}),
        ("airflow.operators.bash", {"BashOperator": bash}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    runpy.run_path(str(EXAMPLES / "airflow_dag.py"))
    assert dags == ["headwater_tables", "headwater_compaction"]
    assert list(commands) == ["grow", "compact"]
    for command in commands.values():
        program, *argv = shlex.split(command)
        assert program == "headwater"
        make_parser(argv).parse_args(argv)
