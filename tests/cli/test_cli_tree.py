"""The whole tree of commands: the same options everywhere, and JSON that parses from each."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

from cli.conftest import Run, run_command
from e2e.admin_world import commit, give_up, send_half
from tianzhou.client.options import ProducerOptions
from tianzhou.client.sync import Message, Producer
from tianzhou.cmd.commands import cli
from tianzhou.testing import RunningBroker

TESTS: Final = Path(__file__).parents[1]
SAYS_NOTHING_AS_JSON: Final = {
    "broker": "it serves; its ready file and, with --log-json, its log are JSON",
    "nameserver": "as broker",
    "up": "as broker",
    "witness": "as broker",
    "completion": "a script for a shell",
    "grafana-dashboard": "a dashboard, which is JSON already",
}
ONE_BROKER: Final = """
topic create orders -q 1
topic list
topic show orders
topic update orders --permission rw
produce orders --count 3 --size 10
consume orders --from earliest --until-end
message find orders --from 1h
message show past {message}
message trace {message}
group create clerks
group update billing --retries 3
group list
group show billing
group reset billing orders --to-earliest -y
group clone billing audit
group delete audit -y
dlq list
dlq show billing
dlq replay billing -y
transaction list
transaction recheck {half}
transaction rollback {half} -y
scheduled list
scheduled cancel {timer}
cluster
broker status
broker config
broker acknowledge
broker drain --undo
doctor --observe 0
bench --count 10
topic spread orders
topic light-queues
topic shrink orders -q 1
topic delete orders -y
"""
ASKS_NOBODY: Final = """
pipeline init archive
pipeline validate archive.yml
pipeline list
pipeline status archive.yml
pipeline reset archive.yml -y
"""
ELSEWHERE: Final = {
    "broker clean": "cli/test_cli_clean.py",
    "broker forget": "cli/test_cli_brokers.py",
    "broker promote": "replication/ha_cluster.py",
    "demo": "pipelines/test_demo.py",
    "pipeline report": "pipelines/test_pipeline_command.py",
    "pipeline run": "pipelines/test_pipeline_command.py",
    "raft add": "replication/test_raft_membership.py",
    "raft remove": "replication/test_raft_membership.py",
    "raft status": "replication/test_raft_membership.py",
    "raft transfer": "replication/test_raft_membership.py",
    "sql": "pipelines/test_pipeline_command.py",
    "store inspect": "e2e/test_store_commands.py",
    "store acknowledge": "e2e/test_store_commands.py",
    "store import": "cli/test_cli_store_conversion.py",
    "store rebuild": "e2e/test_store_commands.py",
    "store to-raft": "cli/test_cli_store_conversion.py",
    "store verify": "e2e/test_store_commands.py",
    "transaction commit": "cli/test_cli_messages.py",
    "transaction resume": "cli/test_cli_messages.py",
}
"""Commands that need slaves, members, Spark, or a broker that has stopped: their JSON is read in
these tests."""


def leaves(command: click.Command = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in command.list_commands(context):
            found = command.get_command(context, verb)
            assert found is not None, f"{name} lists {verb} and does not have it"
            yield from leaves(found, f"{name} {verb}".strip())


COMMANDS: Final = dict(leaves())


def command_in(line: str) -> str:
    """The longest beginning of the line that is a command."""
    words = line.split()
    names = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
    return next(name for name in names if name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_json_option_unless_exempt(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert ("--json" in options) != (name in SAYS_NOTHING_AS_JSON)


@pytest.mark.parametrize(
    ("dest", "opts"),
    [
        ("nameserver", ["-n", "--nameserver"]),
        ("as_json", ["--json"]),
        ("watch", ["-w", "--watch"]),
        ("every_s", ["--every"]),
        ("yes", ["-y", "--yes"]),
        ("form", ["--format"]),
    ],
)
def test_option_has_the_same_spelling_in_every_command(dest: str, opts: list[str]) -> None:
    spelled = [
        (name, parameter.name, parameter.opts)
        for name, command in COMMANDS.items()
        for parameter in command.params
        if parameter.name == dest or set(opts) & set(parameter.opts)
    ]
    # Who starts a broker names all its NameServers, which is a setting of it.
    assert len(spelled) > 1
    assert not [one for one in spelled if one[0] != "broker" and one[1:] != (dest, opts)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_accepts_the_short_help_option(name: str) -> None:
    root = click.Context(cli, info_name="tianzhou", **cli.context_settings)
    assert click.Context(COMMANDS[name], parent=root).help_option_names == ["-h", "--help"]


def test_short_help_option_prints_the_same_help() -> None:
    for words in ((), ("topic",), ("topic", "list"), ("message", "show")):
        short, long = run_command(*words, "-h"), run_command(*words, "--help")
        assert (short.code, short.out) == (0, long.out)


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        ("topic list -n 127.0.0.1:1", 3, "unreachable"),
        ("topic show", 2, "wrong_use"),
        ("topic list --bogus", 2, "wrong_use"),
        ("topics list", 2, "wrong_use"),
        ("consume orders --offset 1", 2, "wrong_use"),
        ("store verify /nonexistent", 2, "wrong_use"),
    ],
)
def test_json_error_is_one_object_on_stderr(line: str, code: int, kind: str) -> None:
    said = run_command(*shlex.split(line), "--json")
    assert (said.code, said.out) == (code, "")
    error = json.loads(said.err)["error"]
    assert error.keys() == {"kind", "exit_code", "message"}
    assert (error["kind"], error["exit_code"]) == (kind, code)
    assert error["message"]
    assert run_command(*shlex.split(line)).err.endswith("\n")


def test_json_error_of_a_broker_is_one_object(run: Run) -> None:
    said = run("topic", "show", "nothing", "--json")
    assert json.loads(said.err)["error"]["kind"] == "not_found"
    assert (said.code, said.out) == (4, "")


@pytest.mark.parametrize(("stdin", "message"), [("", "--yes"), ("n\n", "nothing was changed")])
def test_json_error_of_a_missing_confirmation_is_one_object(
    run: Run, stdin: str, message: str
) -> None:
    """A program has no terminal to show the question on."""
    run("group", "create", "billing")
    said = run("group", "delete", "billing", "--json", stdin=stdin)
    assert said.code == 1
    assert message in json.loads(said.err)["error"]["message"]
    asked = run("group", "delete", "billing", stdin=stdin)
    assert asked.err.startswith("Delete group billing and its dead letters? [y/N]: ")


def test_every_list_and_status_command_has_the_watch_option() -> None:
    looks = [name for name in COMMANDS if name.split()[-1] in ("list", "status", "cluster")]
    assert len(looks) > 8
    for name in looks:
        assert "watch" in {parameter.name for parameter in COMMANDS[name].params}, name


def test_json_of_every_command_is_tested() -> None:
    lines = (ONE_BROKER + ASKS_NOBODY).split("\n")
    here = {command_in(line) for line in lines if line}
    assert {*here, *ELSEWHERE, *SAYS_NOTHING_AS_JSON} == COMMANDS.keys()
    for name, test in ELSEWHERE.items():
        text = (TESTS / test).read_text(encoding="utf-8")
        assert "--json" in text, test
        assert all(f'"{word}"' in text for word in name.split()), f"{name} is not in {test}"


def parsed(line: str, *, nameserver: str | None) -> list[Any]:
    words = [*shlex.split(line), "--json", *(["-n", nameserver] if nameserver else [])]
    said = run_command(*words)
    assert said.code == 0, f"{line}: {said.out}{said.err}"
    return [json.loads(one) for one in said.out.splitlines()]


def test_json_of_broker_commands_can_be_parsed(run: Run, mq: RunningBroker) -> None:
    """Run every command that one broker can serve, in an order in which each has something to
    show."""
    names = played(mq, run)
    for line in ONE_BROKER.strip().split("\n"):
        assert parsed(line.format(**names), nameserver=mq.nameserver), line


def played(mq: RunningBroker, run: Run) -> dict[str, str]:
    """What has ids: a traced message, a half one, one that waits; and a dead letter."""
    run("topic", "create", "past", "-q", "1")
    with Producer(
        "shop", nameserver=mq.nameserver, options=ProducerOptions(trace=True)
    ) as producer:
        traced = producer.send(Message("past", b"two apples"))
    run("group", "create", "billing")
    commit(mq, "billing", "past", offset=0)
    give_up(mq, "billing", "past")
    send_half(mq, "past", b"half")
    run("produce", "past", "--delay", "2h", stdin="later\n")
    (timer,) = mq.wait_until(lambda: run("scheduled", "list", "--json").json, what="a timer")
    (half,) = mq.wait_until(lambda: run("transaction", "list", "--json").json, what="a half")
    mq.wait_until(lambda: mq.stored("RMQ_SYS_TRACE_TOPIC"), what="the trace")
    return {"message": traced.message_id, "half": half["message_id"], "timer": timer["message_id"]}


def test_json_of_commands_without_a_broker_can_be_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in ASKS_NOBODY.strip().split("\n"):
        assert parsed(line, nameserver=None), line
