"""Every command in an installation without extras: it works, or says which extra it needs."""

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from cli.conftest import Run
from cli.core_environment import core_distributions, link_core, python_with_core
from cli.test_cli_tree import COMMANDS, ONE_BROKER, command_in, played
from tianzhou.base.extras import EXTRA_OF
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.server_process import spare_ports

pytestmark = pytest.mark.slow

NEEDS_SPARK: Final = """
dlq replay billing --where true -y
dlq show billing --where true
demo
pipeline init archive
pipeline list
pipeline report trace
pipeline report audit --topic past
pipeline reset archive -y
pipeline run archive --topic past --output lake
pipeline status archive
pipeline status archive --png drawn.png
pipeline validate archive
sql "SELECT 1"
"""
WITHOUT_A_BROKER: Final = """
completion bash
grafana-dashboard
store inspect {store}
store verify {store}
store rebuild {store}
store acknowledge {store}
store import {store} imported
store to-raft {store} --raft-group g --raft-id n0 --raft-peers n0=127.0.0.1:1 -y
"""
HARMLESS: Final = """
broker clean broker-a
broker acknowledge broker-a
"""
"""Commands that find nothing to do on a broker that is well."""
REJECTED: Final = """
broker forget broker-a
broker promote broker-a
raft add broker-a x=127.0.0.1:1
raft remove broker-a x -y
raft status broker-a
raft transfer broker-a x
transaction commit nothing -y
transaction resume nothing
"""
"""Commands that a lone broker, or one that serves, can only reject."""
UP: Final = "up --nameserver-port 0 --broker-port 0 --http-port 0"
WITNESS: Final = (
    "witness --raft-group g --raft-id w "
    "--raft-peers n0=127.0.0.1:1;n1=127.0.0.1:2;w=127.0.0.1:{port}"
)
SERVERS: Final = ("broker", "nameserver", "up", "witness")
RUN_LINES: Final = """
import json, shlex
from click.testing import CliRunner
from tianzhou.cmd.commands import cli
for line in json.loads(sys.stdin.read()):
    done = CliRunner().invoke(cli, shlex.split(line))
    ended = done.exception is None or isinstance(done.exception, SystemExit)
    print(json.dumps([line, done.exit_code, done.stderr, "" if ended else repr(done.exception)]))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("core") / "packages"
    link_core(directory)
    return directory


def run_lines(core: Path, place: Path, lines: list[str]) -> dict[str, tuple[int, str]]:
    """Exit code and error output of each command line; raises what any of them raised."""
    done = subprocess.run(
        python_with_core(core, RUN_LINES),
        input=json.dumps(lines),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, tuple[int, str]] = {}
    for line, code, said, raised in map(json.loads, done.stdout.splitlines()):
        assert not raised, f"{line}: {raised}"
        found[line] = (code, said)
    return found


def split(lines: str, **names: str) -> list[str]:
    return [line.format(**names) for line in lines.strip().split("\n")]


def test_core_environment_lacks_every_optional_module(core: Path) -> None:
    assert {"click", "numpy"} < core_distributions()
    code = (
        "from importlib.util import find_spec\n"
        f"print([name for name in {sorted(EXTRA_OF)!r} if find_spec(name)])"
    )
    done = subprocess.run(
        python_with_core(core, code), capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == "[]\n"


def test_core_commands_that_need_spark_name_the_extra(core: Path, tmp_path: Path) -> None:
    for line, (code, said) in run_lines(core, tmp_path, split(NEEDS_SPARK)).items():
        wanted = 'tianzhou: pyspark is not installed; run: pip install "tianzhou[spark]"\n'
        assert (code, said) == (2, wanted), line


def test_core_help_of_every_command_works(core: Path, tmp_path: Path) -> None:
    lines = [f"{name} --help" for name in COMMANDS]
    found = run_lines(core, tmp_path, lines)
    assert {line: code for line, (code, _) in found.items() if code} == {}


def test_core_broker_commands_work(core: Path, tmp_path: Path, run: Run, mq: RunningBroker) -> None:
    names = played(mq, run)
    lines = [f"{line} -n {mq.nameserver}" for line in split(ONE_BROKER, **names)]
    lines += [f"{line} -n {mq.nameserver}" for line in split(HARMLESS)]
    found = run_lines(core, tmp_path, lines)
    assert {line: said for line, said in found.items() if said[0]} == {}
    rejected = [f"{line} -n {mq.nameserver}" for line in split(REJECTED)]
    for line, (code, said) in run_lines(core, tmp_path, rejected).items():
        assert code in (2, 4, 5), f"{line}: {said}"
        assert re.fullmatch(r"tianzhou: .+\n", said), line


def test_core_commands_without_a_broker_work(core: Path, tmp_path: Path) -> None:
    with serving(core, tmp_path, f"{UP} --data store") as facts:
        produce = f"produce past --count 3 --size 10 -n {facts['nameserver']}"
        assert run_lines(core, tmp_path, [produce])[produce][0] == 0
    found = run_lines(core, tmp_path, split(WITHOUT_A_BROKER, store="store"))
    assert {line: said for line, said in found.items() if said[0]} == {}


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("broker -p 0 -n 127.0.0.1:1", "broker"),
        ("nameserver -p 0", "nameserver"),
        (UP, "http"),
        (WITNESS, "witness"),
    ],
)
def test_core_servers_start_and_stop(core: Path, tmp_path: Path, line: str, fact: str) -> None:
    with serving(core, tmp_path, line.format(port=spare_ports(1))) as facts:
        assert "127.0.0.1" in facts[fact]


@contextmanager
def serving(core: Path, place: Path, line: str) -> Generator[dict[str, Any]]:
    """A server, from the time it serves; stopped as an operator does."""
    ready = place / "ready.json"
    code = "from tianzhou.cmd.main import main; main()"
    process = subprocess.Popen(
        [*python_with_core(core, code), *shlex.split(line), "--ready-file", str(ready)],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        yield json.loads(ready.read_text("utf-8"))
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def test_core_tests_cover_every_command() -> None:
    lines = (ONE_BROKER + NEEDS_SPARK + WITHOUT_A_BROKER + HARMLESS + REJECTED).split("\n")
    assert {*map(command_in, filter(None, lines)), *SERVERS} == COMMANDS.keys()
