"""Ctrl-C at any time ends a command without a traceback, with the exit code that the docs name."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from cli.conftest import Run
from tianzhou.cmd.interrupts import Interruptible
from tianzhou.testing import RunningBroker

pytestmark = pytest.mark.slow

INTERRUPTED: Final = str(Path(__file__).with_name("interrupted.py"))
TIANZHOU: Final = str(Path(sys.executable).with_name("tianzhou"))
RUNS: Final = 10
SERVES_S: Final = 3.0
"""A command that has not reached its number of calls by then serves or waits: it is interrupted
from outside."""

COMMANDS: Final = {
    "consume": ("consume", "orders", "--from", "earliest"),
    "consume as a member": ("consume", "orders", "--from", "earliest", "-g", "billing"),
    "produce": ("produce", "orders"),
    "watch": ("topic", "list", "-w", "--every", "0.1"),
    "bench": ("bench", "--count", "200"),
}
SERVERS: Final = {
    "nameserver": ("nameserver", "-p", "0"),
    "up": ("up", "--ephemeral", "--broker-port", "0", "--nameserver-port", "0", "--http-port", "0"),
}


def ended(calls: int, again: int, arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code as a shell reports it, and what was written to the error stream."""
    with subprocess.Popen(
        [sys.executable, INTERRUPTED, str(calls), str(again), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            process.wait(SERVES_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read()
    code = process.returncode
    return (128 - code if code < 0 else code), said


def check(name: str, arguments: Sequence[str], calls_max: int) -> None:
    random = Random(name)
    for number in range(RUNS):
        # Half of them anywhere, half more often early, where the phases are short.
        calls = random.randrange(calls_max) if number % 2 else int(calls_max ** random.random())
        again = random.choice((0, 0, 10, 1_000, 10_000))
        code, said = ended(calls, again, arguments)
        where = f"interrupted after {calls} calls and {again} more: {said}"
        assert code in (0, 130), where
        for word in ("Traceback", "KeyboardInterrupt", "ignored", "Aborted"):
            assert word not in said, where


@pytest.mark.parametrize("name", COMMANDS)
def test_command_interrupted_at_any_call_ends_without_traceback(
    name: str, run: Run, mq: RunningBroker
) -> None:
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", stdin="first\nsecond\n")
    check(name, (*COMMANDS[name], "-n", mq.nameserver), 300_000)


@pytest.mark.parametrize("name", SERVERS)
def test_server_interrupted_at_any_call_ends_without_traceback(name: str) -> None:
    check(name, SERVERS[name], 2_000_000)


def test_broker_interrupted_at_any_call_ends_without_traceback(
    mq: RunningBroker, tmp_path: Path
) -> None:
    arguments = ("broker", "-n", mq.nameserver, "-p", "0", "--data", str(tmp_path), "--no-http")
    check("broker", arguments, 1_000_000)


def test_command_interrupted_while_python_starts_is_loading_or_quiet() -> None:
    """Before the first statement of `main` only Python itself, and the script that calls `main`,
    can be interrupted; none of our modules may be."""
    for number in range(15):
        with subprocess.Popen(
            [TIANZHOU, "topic", "list"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            time.sleep(number * 0.01)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert "tianzhou/admin" not in said, said
        assert "tianzhou/cmd/commands" not in said, said


def test_command_whose_sigint_is_ignored_runs_to_its_end(run: Run, mq: RunningBroker) -> None:
    """As under `nohup` or in the background of a script."""
    run("topic", "create", "orders", "-q", "1")
    code = "import signal, os, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"  # noqa: E501
    ignoring = [sys.executable, "-c", code, sys.executable, INTERRUPTED, "5000", "0"]
    done = subprocess.run(
        [*ignoring, "topic", "list", "-n", mq.nameserver],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, "orders" in done.stdout) == (0, True), done.stderr


def test_interrupt_while_an_import_creates_a_class_stays_an_interrupt() -> None:
    """Python 3.11 wraps what `__set_name__` raises in a RuntimeError."""

    class Interrupting:
        def __set_name__(self, _owner: type, _name: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Interruptible():
        type("Credentials", (), {"secret_key": Interrupting()})
