"""`tianzhou pipeline` and `tianzhou sql` as users run them: real processes, stopped and killed."""

import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from click.testing import CliRunner

from clients.server_process import spare_port
from clients.waiting import wait_until
from tianzhou.client.options import ProducerOptions
from tianzhou.client.sync import Message, Producer
from tianzhou.cmd.commands import cli
from tianzhou.spark.pipelines import builtin, history
from tianzhou.spark.pipelines.history import Sample
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory
from tianzhou.spark.tables.table import Table
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.patience import Patience

SCRIPT = Path(sys.prefix) / "bin" / "tianzhou"
START_S = 240.0
"""A command starts its own Spark in ten seconds on an idle machine, and in minutes on a busy
one."""


def said(*arguments: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command that needs no Spark, and return its output."""
    monkeypatch.chdir(cwd)
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code != 0
    return done.output


def test_pipeline_init_validate_list_and_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> str:
        return said("pipeline", *arguments, cwd=tmp_path, monkeypatch=monkeypatch)

    assert "Wrote aggregate.yml" in call("init", "aggregate")
    assert "aggregate is valid" in call("validate", "aggregate.yml", "--set", "source.topic=x")
    assert "exists; choose another" in refused("pipeline", "init", "aggregate")
    mistake = refused("pipeline", "validate", "aggregate.yml", "--set", "sauce=hot")
    assert "aggregate.yml:" in mistake
    assert "unknown key 'sauce'" in mistake
    (tmp_path / "broken.yml").write_text("name: [")
    listed = call("list")
    assert "aggregate.yml" in listed
    assert "invalid" in listed
    assert "built-in" in listed
    pipeline, directory = builtin.find("aggregate.yml")
    place = PipelineDirectory(pipeline, directory)
    before = place.identity()
    assert "starts over" in call("reset", "aggregate.yml", "--yes")
    assert place.identity() != before


def test_pipeline_status_prints_metrics_and_draws_a_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> str:
        return said("pipeline", "status", *arguments, cwd=tmp_path, monkeypatch=monkeypatch)

    monkeypatch.chdir(tmp_path)
    assert "No micro-batch yet" in call("archive")
    place = PipelineDirectory(*builtin.find("archive"))
    samples = [
        Sample(
            query="sink-0",
            batch=n,
            time_ms=1_700_000_000_000 + n * 1000,
            rows_in=100 * n,
            rows_out=100 * n,
            behind=10 - n,
            batch_ms=500,
            latency_ms=900,
        )
        for n in range(10)
    ]
    history.save(place, samples)
    shown = call("archive")
    assert "4,500" in shown
    assert "▁" in shown
    facts = json.loads(call("archive", "--json"))
    assert facts["queries"]["sink-0"]["rowsIn"] == 4500
    assert facts["process"] is None
    call("archive", "--png", "figures.png")
    data = (tmp_path / "figures.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000


# Processes


@pytest.fixture
def topic(shared_broker: RunningBroker) -> str:
    name = f"orders-{os.getpid()}-{time.monotonic_ns()}"
    shared_broker.create_topic(name)
    return name


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands in the test's directory. `screen` receives the output instead of a file.
    Commands that still run end with the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(arguments: list[str], screen: int | None = None) -> "subprocess.Popen[bytes]":
        with (tmp_path / "said.txt").open("ab") as out:
            process = subprocess.Popen(
                [SCRIPT, *arguments],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out if screen is None else screen,
                start_new_session=True,
            )
        begun.append(process)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[int]:
    """A terminal whose output is appended to the same file."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120))

    def copy() -> None:
        # Reading from a terminal that no process has open is an error.
        with (tmp_path / "said.txt").open("ab", buffering=0) as out, suppress(OSError):
            while data := os.read(ours, 65536):
                out.write(data)

    thread = Thread(target=copy)
    thread.start()
    yield theirs
    os.close(theirs)
    thread.join()
    os.close(ours)


def until(look: Callable[[], object], what: str, cwd: Path) -> None:
    patience = Patience(START_S)
    while not look():
        assert not patience.is_over(), f"{what}: {(cwd / 'said.txt').read_text()[-3000:]}"
        time.sleep(0.005)


@pytest.fixture
def sending(shared_broker: RunningBroker, topic: str) -> Iterator[None]:
    """A producer sends continuously."""
    stop = Event()

    def send() -> None:
        with Producer("tests", nameserver=shared_broker.nameserver) as producer:
            for n in itertools.count():
                producer.send(Message(topic, b"%d" % n))
                if stop.wait(0.01):
                    return

    thread = Thread(target=send)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pipeline_validate_plans_with_real_topics(
    shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "count.yml").write_text(
        f"name: count\nsource: {{topic: {topic}}}\n"
        "transform: {sql: SELECT nothing FROM messages}\nsinks: [{type: console}]\n"
    )
    command = [SCRIPT, "pipeline", "validate", "count.yml", "-n", shared_broker.nameserver]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    planned = subprocess.run([*command, "--plan"], cwd=tmp_path, capture_output=True, text=True)
    assert planned.returncode == 1
    assert "count.yml:3: transform.sql: " in planned.stderr
    assert "`nothing`" in planned.stderr
    assert [path.name for path in (tmp_path / "checkpoints" / "count").iterdir()] == ["spark.log"]


@pytest.mark.slow
def test_invalid_arguments_fail_before_spark_starts(
    shared_broker: RunningBroker, tmp_path: Path
) -> None:
    """The log does not even exist."""
    here, unreachable = shared_broker.nameserver, f"127.0.0.1:{spare_port()}"
    (tmp_path / "there.csv").touch()
    for words, code, said in (
        (
            ["pipeline", "run", "archive", "-n", here, "--topic", "nothing-here"],
            1,
            "<archive>:5: source: [ROCKETMQ.UNKNOWN_TOPIC] topic 'nothing-here' does not exist",
        ),
        (
            ["sql", "SELECT 1", "-n", unreachable],
            3,
            "[ROCKETMQ.NAMESERVER_UNREACHABLE] no name server responded",
        ),
        (
            ["sql", "SELECT 1", "-n", here, "--archive", "arhive"],
            1,
            "there is no archive at arhive",
        ),
        (
            ["sql", "SELECT 1", "-n", here, "--format", "csv", "--output", "there.csv"],
            2,
            "there.csv exists",
        ),
    ):
        done = subprocess.run(
            [SCRIPT, *words],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code
        assert done.stderr.startswith(f"tianzhou: {said}")
        assert len(done.stderr.splitlines()) <= 4, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sql_of_an_unknown_topic_exits_with_not_found_and_lists_topics(
    shared_broker: RunningBroker, topic: str
) -> None:
    done = subprocess.run(
        [SCRIPT, "sql", "SELECT * FROM nothing_here", "-n", shared_broker.nameserver],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4, done.stderr
    listed = done.stderr.partition("Topics here: ")[2]
    assert topic in listed
    assert "DefaultCluster" not in listed
    assert "broker-a" not in listed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pipeline_report_uses_the_traces_of_clients(
    shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    options = ProducerOptions(trace=True)
    nameserver = shared_broker.nameserver
    with Producer("shop", nameserver=nameserver, options=options) as producer:
        for n in range(5):
            producer.send(Message(topic, b"%d" % n))
    traces = "RMQ_SYS_TRACE_TOPIC"
    wait_until(
        lambda: sum(m.body.count(topic.encode()) for m in shared_broker.stored(traces)) >= 5,
        within_s=30,
        what="the traces are stored",
    )
    command = [SCRIPT, "pipeline", "report", "audit", "--topic", topic, "-n", nameserver]
    said = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert {row["producer"] for row in rows} == {"shop"}
    names = (
        "produced",
        "stored",
        "lost",
        "unconsumed",
    )  # one row per hour, if the hour changed during the test
    assert [sum(row[name] for row in rows) for name in names] == [5, 5, 0, 5]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("sending")
def test_killed_archive_has_every_message_once(
    shared_broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed while a micro-batch is being staged, and right after its log record; then run to the
    end, after Spark gave up on a late Python process. SQL over topic and archive returns what the
    broker has."""
    command = ["pipeline", "run", "archive", "-n", shared_broker.nameserver, "--topic", topic]
    command += ["--set", "trigger.interval=1s"]
    table, staging = Table(str(tmp_path / "archive")), tmp_path / "archive/_tianzhou/staging"

    def log_length() -> int:
        return len(list((tmp_path / "archive/_tianzhou/log").glob("*.json")))

    for stage in ("aside", "recorded"):
        process = start([*command, "--set", "source.maxOffsetsPerTrigger=400"])
        begun = log_length()
        until(lambda begun=begun: log_length() > begun, "a first micro-batch", tmp_path)
        seen = log_length()
        if stage == "aside":
            until(lambda: list(staging.glob("*/*")), "a micro-batch in work", tmp_path)
        else:
            until(lambda seen=seen: log_length() > seen, "a record", tmp_path)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    monkeypatch.setenv("PYSPARK_PYTHON", str(late_python(tmp_path)))
    process = start([*command, "--once", "--json"])
    monkeypatch.undo()
    assert process.wait(START_S) == 0, (tmp_path / "said.txt").read_text()[-3000:]
    spark_log = (tmp_path / "checkpoints/archive/spark.log").read_text("utf-8", "replace")
    assert "Python worker failed to connect back" in spark_log
    facts = json.loads((tmp_path / "said.txt").read_text().splitlines()[-1])
    assert facts["queries"]["sink-0"]["rowsIn"] > 0
    check_archive(shared_broker, topic, table, tmp_path)


def late_python(directory: Path) -> Path:
    """A Python whose first stream takes longer to start than the ten seconds that Spark waits."""
    script = directory / "late-python"
    script.write_text(f"""#!/bin/sh
case "$*" in
  *python_streaming_source_runner*) mkdir "{directory}/late" 2>/dev/null && sleep 11 ;;
esac
exec "{sys.executable}" "$@"
""")
    script.chmod(0o755)
    return script


def check_archive(broker: RunningBroker, topic: str, table: Table, directory: Path) -> None:
    datasets = pytest.importorskip("pyarrow.dataset")
    found = datasets.dataset(str(directory / "archive"), partitioning="hive").to_table()
    rows = found.select(["queueId", "queueOffset", "body"]).to_pylist()
    places = {(row["queueId"], row["queueOffset"]): row["body"] for row in rows}
    assert len(rows) == len(places) == table.state().rows
    stored = {(m.queue_id, m.queue_offset): m.body for m in broker.stored(topic)}
    ends = table.state().ends[topic]["broker-a"]
    archived = {key: body for key, body in stored.items() if key[1] < ends[str(key[0])]}
    assert places == archived
    sql = f"""SELECT count(*) AS c, count(DISTINCT queueId, queueOffset) AS d,
              timestamp_seconds(0) AS begin FROM `{topic}`"""
    said = subprocess.run(
        [
            SCRIPT,
            "sql",
            sql,
            "-n",
            broker.nameserver,
            "--archive",
            "archive",
            "--json",
            "--bodies",
            "raw",
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TZ": "Asia/Shanghai"},
    ).stdout
    counted = json.loads(said)
    assert counted["begin"] == "1970-01-01T00:00:00", "UTC, wherever one is"
    assert counted["c"] == counted["d"] >= len(stored)
    assert counted["c"] <= len(broker.stored(topic))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("sending")
def test_ctrl_c_stops_gracefully_and_a_second_run_is_rejected(
    shared_broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Start,
    screen: int,
) -> None:
    command = ["pipeline", "run", "archive", "-n", shared_broker.nameserver, "--topic", topic]
    process = start([*command, "--set", "trigger.interval=1s"], screen)
    log = tmp_path / "archive/_tianzhou/log"
    until(lambda: len(list(log.glob("*.json"))) > 1, "two micro-batches", tmp_path)
    live = ("rows in", "rows out", "behind", "latency", "█", "max ")
    until(
        lambda: all(word in (tmp_path / "said.txt").read_text() for word in live),
        "the live view",
        tmp_path,
    )
    facts = said("pipeline", "status", "archive", "--json", cwd=tmp_path, monkeypatch=monkeypatch)
    assert json.loads(facts)["process"] == process.pid
    second = subprocess.run([SCRIPT, *command], cwd=tmp_path, capture_output=True, text=True)
    assert second.returncode == 1
    assert f"is already running in process {process.pid}" in second.stderr
    os.killpg(
        process.pid, signal.SIGINT
    )  # as a terminal does: Java and the workers get the signal too
    assert process.wait(START_S) == 0
    text = (tmp_path / "said.txt").read_text()
    assert "archive ended. sink-0:" in text
    assert "Traceback" not in text
    assert not list((tmp_path / "archive/_tianzhou/staging").glob("*/*"))
    shown = said("pipeline", "status", "archive", cwd=tmp_path, monkeypatch=monkeypatch)
    assert "not running" in shown
