"""The examples for spark-submit, Airflow and commands to boards."""

import os
import runpy
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headwater_host.cli.main import make_parser
from headwater_spark.tables import MESSAGES
from tests.spark.hubs import Reader, hub_on
from tests.spark.hubs import publish as send
from tests.spark.logs import Rec, publish, reading, rows, write_log
from tools.broker import HOST

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


@pytest.mark.needs_java
@pytest.mark.timeout(900)
def test_commands_to_boards(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub") as hub, Reader(hub.port, "plant/oven/commands") as board:
        words = [f"{HOST}:{hub.port}", str(tmp_path / "log"), str(tmp_path / "checkpoint")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        }
        program = [sys.executable, str(EXAMPLES / "commands.py"), *words]
        send(hub.port, ("plant/oven", b'{"celsius": 69.5}'), ("plant/oven", b'{"celsius": 71.5}'))
        with subprocess.Popen(program, env=environment) as query:
            try:
                commands = board.take()
                while not commands:
                    assert query.poll() is None
                    time.sleep(0.5)
                    commands = board.take()
            finally:
                query.kill()
    assert [message.payload for message in commands] == [b"cool"]


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
