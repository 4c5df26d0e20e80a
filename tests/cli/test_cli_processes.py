"""The installed command as a process: what it loads, how it is interrupted, what it completes."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest

from cli.conftest import Run
from e2e.admin_world import commit, give_up
from tianzhou.testing import RunningBroker

pytestmark = pytest.mark.slow

TIANZHOU: Final = str(Path(sys.executable).with_name("tianzhou"))
HEAVY: Final = (
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "uvloop",
    "rich",
    "msgspec",
    "asyncio",
    "tianzhou.client",
    "tianzhou.broker",
    "tianzhou.store",
    "tianzhou.spark",
)


def loaded_by(*arguments: str) -> set[str]:
    """Modules that are there when the command has ended."""
    code = (
        "import sys, json\n"
        "from tianzhou.cmd.commands import cli\n"
        f"cli.main({list(arguments)!r}, standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments", [("--help",), ("topic", "--help"), ("consume", "--help"), ("completion", "zsh")]
)
def test_command_start_up_loads_no_heavy_module(arguments: tuple[str, ...]) -> None:
    found = loaded_by(*arguments)
    assert not [name for name in HEAVY if name in found]


def test_command_definitions_load_no_heavy_module() -> None:
    """All of them in one process: what help and completion load of each. Only the loop of servers
    is there, for the options of their HTTP port."""
    code = (
        "import click, sys\n"
        "from tianzhou.cmd.commands import cli\n"
        "def walk(command):\n"
        "    context = click.Context(command)\n"
        "    if isinstance(command, click.Group):\n"
        "        for name in command.list_commands(context):\n"
        "            walk(command.get_command(context, name))\n"
        "walk(cli)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split()) - {"asyncio"}
    assert "tianzhou.cmd.up" in found
    assert not [name for name in HEAVY if name in found]


def test_admin_command_loads_no_server_and_no_spark(mq: RunningBroker) -> None:
    for arguments in (("topic", "list"), ("broker", "status")):
        found = loaded_by(*arguments, "-n", mq.nameserver)
        heavy = ("pyspark", "pyarrow", "pandas", "numpy", "uvloop", "prometheus_client")
        assert not [name for name in found if name.startswith(heavy)]
        assert not found & {"tianzhou.broker.server", "tianzhou.store.store", "tianzhou.spark"}


@pytest.mark.parametrize(("module", "most_ms"), [("cmd.commands", 150), ("client.sync.admin", 300)])
def test_command_imports_are_fast(module: str, most_ms: int) -> None:
    """Measure processor time, the best of three, because other programs use the machine too. An
    admin command takes less than 150 ms on an idle machine; twice that is allowed here."""
    code = f"import time, tianzhou.{module}; print(time.process_time())"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) * 1000 < most_ms


def test_command_start_time_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Other programs use the machine too: the time is printed, and only a far longer one fails."""
    times: list[float] = []
    for _ in range(3):
        begun_s = time.perf_counter()
        subprocess.run([TIANZHOU, "--version"], check=True, capture_output=True, timeout=300)
        times.append(time.perf_counter() - begun_s)
    with capsys.disabled():
        sys.stdout.write(f"\ntianzhou --version: {min(times) * 1000:.0f} ms\n")
    assert min(times) < 5


def test_watch_continues_until_it_is_interrupted(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    arguments = [TIANZHOU, "topic", "list", "-n", mq.nameserver, "--json", "-w", "--every", "0.1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    assert [rows[0]["topic"] for rows in first] == ["orders"] * 3


def test_watch_prints_without_a_terminal(run: Run, mq: RunningBroker) -> None:
    """Each update is printed below the last one: `tianzhou topic list -w | head` must show
    something."""
    run("topic", "create", "orders", "-q", "1")
    arguments = [TIANZHOU, "topic", "list", "-n", mq.nameserver, "-w", "--every", "0.1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        looks = 0
        while looks < 2:
            looks += process.stdout.readline().startswith(" orders ")
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0


def test_watch_and_tail_survive_a_broker_restart(run: Run, mq: RunningBroker) -> None:
    """They report that the broker does not respond, and keep trying."""
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", stdin="first\n")
    to = ("-n", mq.nameserver)
    watch = [TIANZHOU, "broker", "status", *to, "--json", "-w", "--every", "0.1"]
    tail = [TIANZHOU, "consume", "orders", *to, "--from", "earliest", "--format", "body"]
    with piped(watch) as watching, piped(tail) as tailing:
        for process, first in ((watching, '{"broker"'), (tailing, "first")):
            assert process.stdout is not None
            assert process.stdout.readline().startswith(first)
        mq.stop()
        for process in (watching, tailing):
            assert process.stderr is not None
            assert "`tianzhou doctor` explains why" in process.stderr.readline()
        mq.start()
        run("produce", "orders", stdin="second\n")
        for process, word in ((watching, '"sent_today": 1'), (tailing, "second")):
            assert process.stdout is not None
            while word not in (line := process.stdout.readline()):
                assert line, f"{word} did not come"
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 0


def test_produce_reports_errors_while_input_continues(run: Run, mq: RunningBroker) -> None:
    """As in `tail -f log | tianzhou produce`: not only when there are no more lines."""
    run("topic", "create", "orders", "-q", "1")
    with piped([TIANZHOU, "produce", "orders", "-n", mq.nameserver]) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        mq.wait_until(lambda: mq.stored("orders"), what="the first message")
        mq.kill()
        deadline = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < deadline, "it reads on, though nothing can be sent"
            with suppress(BrokenPipeError):
                process.stdin.write("another\n")
                process.stdin.flush()
            time.sleep(0.05)
        said = process.stderr.read()
        with suppress(BrokenPipeError):
            process.stdin.close()
    assert process.returncode == 3, said
    assert "1 messages were sent before" in said
    assert "Connection refused" in said


def piped(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_confirmation_interrupted_or_unanswered_changes_nothing(
    run: Run, mq: RunningBroker
) -> None:
    run("topic", "create", "orders", "-q", "1")
    arguments = [TIANZHOU, "topic", "delete", "orders", "-n", mq.nameserver]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read(len("Delete topic")) == "Delete topic"
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    unanswered = run("topic", "delete", "orders")
    assert (unanswered.code, "--yes" in unanswered.err) == (1, True)
    assert run("topic", "delete", "orders", stdin="n\n").code == 1
    assert run("topic", "show", "orders").code == 0, "it is still there"
    assert run("topic", "delete", "orders", stdin="y\n").code == 0


def on_a_screen(arguments: list[str]) -> tuple[str, str]:
    """What a command prints and what it draws beside that, each on a terminal of 80 columns."""
    with ThreadPoolExecutor(2) as pool:
        seen: list[Future[bytes]] = []
        theirs: list[int] = []
        for _ in range(2):
            ours, its = os.openpty()
            termios.tcsetwinsize(its, (24, 80))
            theirs.append(its)
            seen.append(pool.submit(all_of, ours))
        try:
            subprocess.run(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=theirs[0],
                stderr=theirs[1],
                env={**os.environ, "TERM": "xterm"},
                check=True,
                timeout=300,
            )
        finally:
            for its in theirs:
                os.close(its)
        out, drawn = [one.result(120).decode() for one in seen]
    return out, drawn


def all_of(terminal: int) -> bytes:
    """Everything shown on the terminal; reading fails once no process has it open."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as screen, suppress(OSError):
        while data := screen.read(65536):
            shown += data
    return shown


def test_dlq_replay_shows_a_progress_bar(run: Run, mq: RunningBroker) -> None:
    """In a terminal, when the replay takes long enough to show progress."""
    run("group", "create", "billing")
    run("produce", "orders", "--count", "60", "--size", "10")
    commit(mq, "billing", "orders", offset=0)
    give_up(mq, "billing", "orders")
    arguments = [TIANZHOU, "dlq", "replay", "billing", "-n", mq.nameserver, "-y"]
    with mq.faults.slow(seconds=0.015):
        out, drawn = on_a_screen(arguments)
    assert "60 sent to %RETRY%billing, 0 left" in out
    assert "60/60" in drawn
    assert len(mq.stored("%RETRY%billing")) == 60


def test_produce_of_a_slow_load_shows_a_progress_bar(run: Run, mq: RunningBroker) -> None:
    """The bar moves with every stored message, however few are in flight."""
    run("topic", "create", "orders", "-q", "1")
    _, drawn = on_a_screen(
        [TIANZHOU, "produce", "orders", "-n", mq.nameserver, "--count", "12", "--rate", "8"]
    )
    assert "/12" in drawn


def test_consume_tail_shows_new_messages_and_ends_quietly(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", stdin="first\n")
    arguments = [
        TIANZHOU,
        "consume",
        "orders",
        "-n",
        mq.nameserver,
        "--from",
        "earliest",
        "--format",
        "body",
    ]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "first\n"
        run("produce", "orders", stdin="second\n")
        assert process.stdout.readline() == "second\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
        assert process.stderr.read() == ""


def test_consume_of_a_group_on_sigterm_commits_what_it_showed(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", stdin="first\nsecond\n")
    arguments = [
        TIANZHOU,
        "consume",
        "orders",
        "-n",
        mq.nameserver,
        "--from",
        "earliest",
        "--format",
        "body",
        "-g",
        "billing",
    ]
    with piped(arguments) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == ["first\n", "second\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert process.stderr.read() == ""
    assert mq.committed("billing", "orders") == {0: 2}


def test_consume_without_a_group_ends_on_sigterm_with_code_0(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", stdin="first\n")
    arguments = [TIANZHOU, "consume", "orders", "-n", mq.nameserver, "--from", "earliest"]
    with piped(arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("first\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


def test_nameserver_on_a_port_in_use_reports_it(mq: RunningBroker) -> None:
    arguments = [TIANZHOU, "nameserver", "-p", mq.nameserver.rpartition(":")[2]]
    said = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert said.returncode == 1
    assert f"cannot listen on {mq.nameserver}: Address already in use; stop the" in said.stderr


def test_scheduled_list_shows_whole_ids_on_a_narrow_terminal(run: Run, mq: RunningBroker) -> None:
    """Users copy ids from the terminal."""
    run("produce", "orders", "--delay", "2h", stdin="later\n")
    (waiting,) = mq.wait_until(lambda: run("scheduled", "list", "--json").json, what="a timer")
    out, _ = on_a_screen([TIANZHOU, "scheduled", "list", "-n", mq.nameserver])
    assert waiting["message_id"] in out


class Shell:
    """An interactive shell in a terminal."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self._ours, its = os.openpty()
        termios.tcsetwinsize(its, (24, 200))
        path = f"{Path(TIANZHOU).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=its,
            stdout=its,
            stderr=its,
            env={**os.environ, **environment, "PATH": path, "PS1": "$ ", "TERM": "xterm"},
        )
        os.close(its)
        self._seen = b""

    def types(self, keys: str, *, until: str) -> None:
        """Press keys, and look until that is on the screen."""
        os.write(self._ours, keys.encode())
        self._seen = b""
        deadline = time.monotonic() + 60
        while until.encode() not in self._seen:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self._ours], [], [], max(0.0, left_s))
            assert ready, f"{until!r} did not come: {self._seen!r}"
            self._seen += os.read(self._ours, 65536)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


BASH: Final = ["bash", "--norc", "--noprofile", "-i"]
SHELLS: Final = {
    "bash": (BASH, 'eval "$(tianzhou completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -Uz compinit && compinit -D && eval "$(tianzhou completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "tianzhou completion fish | source"),
}


@pytest.mark.parametrize("name", SHELLS)
def test_completion_in_a_real_shell_offers_commands_options_and_topics(
    name: str, run: Run, mq: RunningBroker, tmp_path: Path
) -> None:
    if shutil.which(name) is None:
        pytest.skip(
            f"there is no {name}: its completion was not tried (Debian: apt install {name})"
        )
    run("topic", "create", "orders", "-q", "1")
    command, load = SHELLS[name]
    with closing(Shell(command, TIANZHOU_NAMESERVER=mq.nameserver, HOME=str(tmp_path))) as shell:
        shell.types(f'{load}; echo loa""ded\n', until="loaded")
        shell.types("tianzhou trans\t", until="action")
        shell.types("\x15tianzhou topic show ord\t", until="orders")
        shell.types("--wat\t", until="watch")


def test_completion_uses_the_given_nameserver(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    with closing(Shell(BASH, TIANZHOU_NAMESERVER="127.0.0.1:1")) as bash:
        bash.types('eval "$(tianzhou completion bash)" && echo loa""ded\n', until="loaded")
        bash.types("tianzhou topic show ord\t", until="ord\x07")  # ambiguous: it beeps
        bash.types(f"\x15tianzhou topic show -n {mq.nameserver} ord\t", until=" orders ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    done = subprocess.run([TIANZHOU, "completion", shell], capture_output=True, text=True)
    assert done.returncode == 0
    assert "_TIANZHOU_COMPLETE" in done.stdout
