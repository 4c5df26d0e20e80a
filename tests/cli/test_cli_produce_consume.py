"""`tianzhou produce` and `tianzhou consume`: what goes in comes out, and does nothing else."""

import json
from pathlib import Path

import pytest

from cli.conftest import Run
from tianzhou.testing import RunningBroker

HOSTILE = "\x1b]0;owned\x07\x1b[31m red \u202eevil \x9b2J [bold]no markup[/bold]"


@pytest.fixture(autouse=True)
def orders(run: Run) -> None:
    run("topic", "create", "orders", "-q", "2")


def everything(run: Run, *more: str) -> list[str]:
    said = run("consume", "orders", "--from", "earliest", "--until-end", "--format", "body", *more)
    assert said.code == 0, said.err
    return sorted(said.out.splitlines())


def test_produce_and_consume_round_trip_lines(run: Run, mq: RunningBroker, tmp_path: Path) -> None:
    said = run(
        "produce",
        "orders",
        "-t",
        "fruit",
        "-k",
        "T1",
        "-p",
        "region=north",
        "--json",
        stdin="two apples\n\nthree pears\r\n",
    )
    assert said.json["sent"] == 2
    path = tmp_path / "more.txt"
    path.write_text("四个梨\n")
    assert "in queue" in run("produce", "orders", "-f", str(path)).out
    assert everything(run) == ["three pears", "two apples", "四个梨"]
    assert everything(run, "--tag", "fruit || nuts") == ["three pears", "two apples"]
    assert everything(run, "--sql", "region = 'north'") == ["three pears", "two apples"]
    assert len(everything(run, "--max", "1")) == 1
    assert len(everything(run, "--from", "1h")) == 3
    (line,) = run(
        "consume", "orders", "--from", "earliest", "--until-end", "--sql", "region IS NULL"
    ).out.splitlines()
    assert line.endswith("  四个梨")
    assert {m.keys for m in mq.stored("orders")} == {("T1",), ()}


def test_produce_and_consume_round_trip_json_lines(run: Run, mq: RunningBroker) -> None:
    sent = [
        {"body": "one", "tags": "a", "keys": ["K1", "K2"], "properties": {"x": "1"}},
        {"body_base64": "/wD+", "keys": "K3"},
        {"body": {"amount": 5}, "sharding_key": "s"},
    ]
    text = "\n".join(map(json.dumps, sent))
    assert run("produce", "orders", "--format", "json", stdin=text).code == 0
    found = run("consume", "orders", "--from", "earliest", "--until-end", "--json").lines
    assert {row.get("body") for row in found} == {"one", None, '{"amount": 5}'}
    again = "\n".join(map(json.dumps, found))
    run("topic", "create", "copies")
    assert run("produce", "copies", "--format", "json", "--json", stdin=again).json["sent"] == 3
    first = {(m.body, m.tags, m.keys, m.properties.get("x")) for m in mq.stored("orders")}
    assert first == {(m.body, m.tags, m.keys, m.properties.get("x")) for m in mq.stored("copies")}
    assert (b"\xff\x00\xfe", None, ("K3",), None) in first


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "omit --format json"),
        ("[]", "not a JSON object"),
        ('{"body": "x", "colour": "red"}', "unknown field colour"),
        ('{"tags": "a"}', "body and body_base64"),
        ('{"body_base64": "?"}', "not valid base64"),
        ('{"body": "x", "keys": [1]}', "list of texts"),
        ('{"body": "x", "properties": {"a": 1}}', "property a must be text, got 1"),
        ('{"body": "x", "properties": {"TAGS": "a"}}', "reserved"),
        ('{"body": "x", "tags": 5}', "tags must be text, got 5"),
        ('{"body": ""}', "empty"),
        ('{"body": null}', "body and body_base64"),
        ('{"body_base64": null}', "body and body_base64"),
        ('{"body": "x", "delay_s": [1]}', "delay_s must be a number, got [1]"),
        ('{"body": "x", "delay_s": 1e400}', "invalid delay_s inf"),
        ('{"body": "x", "deliver_ms": {}}', "deliver_ms must be a number, got {}"),
        ('{"body": "x", "deliver_ms": true}', "deliver_ms must be a number, got True"),
        ('{"body": "x", "deliver_ms": 1e30}', "invalid deliver_ms 1e+30"),
    ],
)
def test_produce_with_an_invalid_line_reports_its_number(
    run: Run, mq: RunningBroker, line: str, told: str
) -> None:
    said = run("produce", "orders", "--format", "json", stdin='{"body": "good"}\n' + line)
    assert said.code == 2
    assert "line 2: " in said.err
    assert told in said.err
    assert "1 messages were sent before" in said.err
    assert [m.body for m in mq.stored("orders")] == [b"good"]


def test_produce_count_has_the_given_size_and_rate(run: Run, mq: RunningBroker) -> None:
    said = run("produce", "orders", "--count", "30", "--size", "50", "--rate", "200", "--json").json
    assert said["sent"] == 30
    assert said["seconds"] >= 29 / 200
    assert {len(m.body) for m in mq.stored("orders")} == {50}
    assert len({m.body for m in mq.stored("orders")}) == 30
    assert run("produce", "orders", "--count", "100", "--size", "1").code == 2


def test_produce_with_a_delay_delivers_later(run: Run, mq: RunningBroker) -> None:
    said = run("produce", "orders", "--delay", "1h", stdin="later\n")
    assert (said.code, "tianzhou scheduled list" in said.out) == (0, True)
    assert mq.stored("orders") == []
    mq.clock.advance(hours=2)
    assert [m.body for m in mq.stored("orders")] == [b"later"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "orders", "-p", "novalue"),
        ("produce", "orders", "--delay", "soon"),
        ("produce", "orders", "--rate", "0"),
        ("produce", "orders", "-f", "/no/such/file"),
        ("produce", "orders", "--count", "3", "-f", __file__),
        ("produce", "orders", "--count", "3", "--format", "json"),
        ("consume", "orders", "--from", "somewhere"),
        ("consume", "orders", "--tag", "a", "--sql", "b = 1"),
        ("consume", "orders", "--group", "g", "--until-end"),
        ("consume", "orders", "--max", "0"),
    ],
)
def test_produce_and_consume_misuse_exits_with_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    said = run(*arguments)
    assert said.code == 2
    assert said.err


def test_consume_errors_of_a_broker_are_reported(run: Run) -> None:
    wrong = run("consume", "orders", "--sql", "a ===", "--until-end")
    assert wrong.code in (2, 5)
    assert "Traceback" not in wrong.err
    assert run("consume", "nope", "--until-end").code == 4


def test_produce_to_a_full_disk_exits_with_code_5(run: Run, mq: RunningBroker) -> None:
    with mq.faults.full_disk():
        said = run("produce", "orders", stdin="x\n")
    assert said.code == 5
    assert "disk" in said.err
    assert "tianzhou doctor" in said.err


def test_consume_with_a_group_resumes_at_its_offset(run: Run, mq: RunningBroker) -> None:
    run("produce", "orders", stdin="1\n2\n3\n")
    arguments = ("consume", "orders", "-g", "billing", "--from", "earliest", "--format", "body")
    first = run(*arguments, "--max", "2", "--idle", "20")
    rest = run(*arguments, "--idle", "1")
    assert sorted((first.out + rest.out).split()) == ["1", "2", "3"]
    assert mq.lag("billing", "orders") == 0


@pytest.mark.parametrize("form", ["line", "body", "json"])
def test_s48_consume_escapes_untrusted_text(run: Run, form: str) -> None:
    """Control sequences in a message are printed as escapes."""
    stranger = json.dumps(
        {
            "body": HOSTILE,
            "keys": "\x1b[2J",
            "tags": "\u202etag",
            "properties": {"\x1bname": "\x07value"},
        }
    )
    run("produce", "orders", "--format", "json", stdin=stranger)
    said = run("consume", "orders", "--from", "earliest", "--until-end", "--format", form)
    assert said.code == 0
    assert all(sign.isprintable() for sign in said.out.replace("\n", ""))
    assert "[bold]no markup[/bold]" in said.out
    if form == "json":
        assert said.lines[0]["body"] == HOSTILE
    message_id = run("consume", "orders", "--from", "earliest", "--until-end", "--json").lines[0][
        "message_id"
    ]
    for more in (("find", "orders", "--from", "1h"), ("show", "orders", message_id)):
        shown = run("message", *more)
        assert shown.code == 0, shown.err
        assert all(sign.isprintable() for sign in shown.out.replace("\n", ""))
        assert "[bold]no markup[/bold]" in shown.out


def test_consume_raw_prints_bytes_unchanged(run: Run) -> None:
    run("produce", "orders", "--format", "json", stdin='{"body": "\\u001b[31m"}')
    said = run("consume", "orders", "--from", "earliest", "--until-end", "--format", "raw")
    assert said.out == "\x1b[31m\n"
