"""The tool that measures what many boards cost: its figures add up."""

import re

import pytest

from tools import spark_cost


def test_the_figures_of_a_few_boards(capsys: pytest.CaptureFixture[str]) -> None:
    assert spark_cost.main(["--boards", "20", "--interval", "60", "--messages", "2000"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("20 boards, a message every 60 s: 0.01 G messages a year\n")
    assert "(800 in one run)" in text
    assert "for 1,200 messages" in text
    sizes = {
        name: float(size) for name, size in re.findall(r"^(\w+) +([0-9.]+) +[0-9]+$", text, re.MULTILINE)
    }
    assert {"log", "frames", "messages", "telemetry", "device_health", "reconciliation"} <= sizes.keys()
    assert 100 < sizes["log"] < 200
    assert 0 < sizes["messages"] < sizes["log"]


def test_too_few_messages_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        spark_cost.main(["--boards", "20", "--interval", "60", "--messages", "1000"])
    assert "an hour has 1200 messages; measure more" in capsys.readouterr().err
