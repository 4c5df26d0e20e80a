"""`tianzhou` run in this process, against a broker of the test's own."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tianzhou.cmd.commands import cli
from tianzhou.testing import RunningBroker


class Said:
    """What a command printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        assert self.code == 0, f"{self.code}: {self.out}{self.err}"
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """JSON, one in each line."""
        assert self.code == 0, f"{self.code}: {self.out}{self.err}"
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Said]
TIMEOUT_S = "30"


def run_command(*arguments: str, stdin: str | bytes = "") -> Said:
    # On a busy machine a broker may take longer than the default timeout to respond.
    done = CliRunner(env={"TIANZHOU_TIMEOUT": TIMEOUT_S}).invoke(
        cli, arguments, input=stdin, catch_exceptions=False
    )
    return Said(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def run(mq: RunningBroker) -> Run:
    """`run("topic", "list")` asks the broker of the test. A bug is raised."""

    def call(*arguments: str, stdin: str | bytes = "") -> Said:
        return run_command(*arguments, "-n", mq.nameserver, stdin=stdin)

    return call
