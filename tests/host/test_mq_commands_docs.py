"""``headwater mq`` in the documentation: its options are the code's, and its examples run."""

import argparse
import re
import shlex
import subprocess
from pathlib import Path

from headwater_mq.commands import main as command
from headwater_mq.commands.arguments import FLAGS
from headwater_mq.commands.output import FIELDS
from tests.host.command import HEADWATER, environment, write_commands
from tools.toolchain import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("\n## mq\n") : PAGE.index("\n## inspect\n")]


def test_the_documentation_has_every_option_flag_and_sequence() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    options = {
        name
        for sub in commands.choices.values()
        for action in sub._actions
        for name in action.option_strings[:1]
    }
    assert [name for name in sorted(options - {"-h"}) if f"  {name}" not in SECTION] == []
    assert [name for name in FLAGS if f"`{name}`" not in SECTION] == []
    assert [letter for letter in FIELDS if f"`%{letter}`" not in SECTION and letter not in "IU"] == []


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(\$.*?)```", SECTION, re.S)
    script = "\n".join(line[2:] for line in block.splitlines() if line.startswith("$ "))
    env = environment(PATH=write_commands(tmp_path / "bin"))
    done = subprocess.run(
        ["sh", "-e", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "".join(
        line for line in block.splitlines(keepends=True) if not line.startswith("$ ")
    )


def test_the_lines_of_the_queue_s_page(tmp_path: Path) -> None:
    """They are run as they stand, by a shell."""
    page = (ROOT / "docs" / "ibm-mq-queue.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```sh\n(.*?)```", page, re.S) if "mq put" in block]
    lines = block.replace("headwater mq", f"{shlex.join(HEADWATER)} mq")
    done = subprocess.run(
        ["sh", "-e", "-c", lines],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-3:] == ["21.5", "21.7", "21.6"]
    assert "1 complete, 0 incomplete" in done.stdout
