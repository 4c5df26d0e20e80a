"""The command as a process whose arguments, streams or signals are unusual."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from cli.conftest import Run
from tianzhou.testing import RunningBroker

pytestmark = pytest.mark.slow

TIANZHOU: Final = str(Path(sys.executable).with_name("tianzhou"))
NOT_UTF8: Final = b"\xff\xfe"


def ended(command: str, mq: RunningBroker) -> subprocess.CompletedProcess[bytes]:
    """The command in a shell, which can close streams."""
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "TIANZHOU_NAMESERVER": mq.nameserver},
    )


def test_produce_sends_a_body_that_is_not_utf8_unchanged(mq: RunningBroker) -> None:
    arguments: list[str | bytes] = [TIANZHOU, "produce", "orders", NOT_UTF8, "-n", mq.nameserver]
    subprocess.run(arguments, capture_output=True, timeout=300, check=True)
    assert [message.body for message in mq.stored("orders")] == [NOT_UTF8]


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "show", NOT_UTF8),
        ("consume", NOT_UTF8),
        ("group", "show", NOT_UTF8),
        ("produce", "orders", "x", "--tag", NOT_UTF8),
        ("produce", "orders", "x", "-p", b"a=\xff"),
        ("broker", "config", "broker-a", "--set", b"\xff=1"),
        ("topic", "list", "-n", NOT_UTF8),
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:-1])),
)
def test_command_argument_that_is_not_utf8_is_a_usage_error(
    mq: RunningBroker, arguments: tuple[str | bytes, ...]
) -> None:
    done = subprocess.run(
        [TIANZHOU, *arguments, "--json"],
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "TIANZHOU_NAMESERVER": mq.nameserver},
    )
    assert done.returncode == 2, done.stderr
    assert b"is not UTF-8 text" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("topic list >&-", 0),
        ("topic list <&- >&- 2>&-", 0),
        ("produce orders <&-", 0),
        ("group delete billing <&-", 1),
        ("--help >/dev/full", 1),
        ("topic list >/dev/full", 1),
    ],
)
def test_command_with_a_closed_or_full_stream_prints_no_traceback(
    run: Run, mq: RunningBroker, command: str, code: int
) -> None:
    run("group", "create", "billing")
    done = ended(f"{TIANZHOU} {command}", mq)
    assert b"Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    if code:
        assert done.stderr.strip(), "it fails without a word"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_bench_ended_by_a_signal_deletes_its_topic(
    run: Run, mq: RunningBroker, number: signal.Signals
) -> None:
    def topics() -> list[str]:
        return [row["topic"] for row in run("topic", "list", "--json").json]

    arguments = [TIANZHOU, "bench", "--count", "10000000", "-n", mq.nameserver]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE) as process:
        try:
            mq.wait_until(topics, within_s=120)
        finally:
            process.send_signal(number)
        assert process.wait(300) == 130
    # A broker that was about to register brings the route back briefly.
    mq.wait_until(lambda: not topics(), within_s=20)


def test_produce_ended_by_a_signal_reports_how_many_were_sent(mq: RunningBroker) -> None:
    arguments = [
        TIANZHOU,
        "produce",
        "orders",
        "--count",
        "100000",
        "--rate",
        "50",
        "-n",
        mq.nameserver,
    ]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            mq.wait_until(lambda: len(mq.stored("orders")) > 3, within_s=120)
        finally:
            process.terminate()
        assert process.wait(300) == 130
        assert "messages were sent before" in process.stderr.read()


def test_up_with_data_and_ephemeral_is_a_usage_error(tmp_path: Path) -> None:
    arguments = [TIANZHOU, "up", "--ephemeral", "--data", str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, "--ephemeral" in done.stderr) == (2, True)
