"""TIANZHOU_TIMEOUT: how long a command waits for one response."""

import socket
from time import monotonic

import pytest
from click.testing import CliRunner

from cli.conftest import Run
from tianzhou.cmd.commands import cli


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", "nan"])
def test_timeout_option_that_is_invalid_is_rejected(value: str) -> None:
    done = CliRunner(env={"TIANZHOU_TIMEOUT": value}).invoke(cli, ["topic", "list"])
    assert done.exit_code == 2
    assert f"TIANZHOU_TIMEOUT must be a number of seconds, got '{value}'" in done.stderr


def test_command_gives_up_on_a_silent_server_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        begun = monotonic()
        runner = CliRunner(env={"TIANZHOU_TIMEOUT": "0.2"})
        done = runner.invoke(cli, ["topic", "list", "-n", address])
    assert done.exit_code == 3
    assert address in done.stderr
    assert monotonic() - begun >= 0.2


def test_timeout_of_the_environment_applies_to_commands(run: Run) -> None:
    assert run("topic", "list", "--json").code == 0
