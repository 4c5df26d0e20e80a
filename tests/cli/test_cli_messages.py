"""`tianzhou message`, `dlq`, `transaction`, `timer`: single messages and what waits."""

import pytest

from cli.conftest import Run
from e2e.admin_world import commit, give_up, park, send_half
from tianzhou.client.options import ProducerOptions
from tianzhou.client.sync import Message, Producer
from tianzhou.testing import RunningBroker


@pytest.fixture(autouse=True)
def orders(run: Run) -> None:
    run("topic", "create", "orders", "-q", "1")


def test_message_find_and_show_find_a_message_by_id_key_and_time(
    run: Run, mq: RunningBroker
) -> None:
    run("produce", "orders", "-k", "T1", "-t", "fruit", stdin="two apples\n")
    (stored,) = mq.stored("orders")
    for how in (
        ("--id", stored.message_id),
        ("--id", stored.offset_id),
        ("--key", "T1"),
        ("--unique-id", stored.message_id),
        ("--from", "1h"),
    ):
        (found,) = run("message", "find", "orders", *how, "--json").json
        assert (found["body"], found["tags"], found["keys"]) == ("two apples", "fruit", ["T1"])
    assert "two apples" in run("message", "find", "orders", "--key", "T1").out
    shown = run("message", "show", "orders", stored.message_id)
    assert "body, 10 bytes" in shown.out
    assert run("message", "show", "orders", stored.offset_id, "--json").json["queue_offset"] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("find", "orders"), 2),
        (("find", "orders", "--key", "a", "--id", "b"), 2),
        (("find", "orders", "--from", "later"), 2),
        (("find", "orders", "--from", "1h", "--to", "2h"), 2),
        (("find", "orders", "--from", "2999-01-01T00:00"), 2),
        (("find", "orders", "--key", "nobody"), 4),
        (("show", "orders", "7F00000100002A9F00000000000000FF"), 4),
        (("show", "nope", "7F00000100002A9F00000000000000FF"), 4),
        (("trace", "7F00000100002A9F00000000000000FF"), 4),
    ],
)
def test_message_commands_with_missing_or_invalid_input_exit_with_a_code(
    run: Run, arguments: tuple[str, ...], code: int
) -> None:
    said = run("message", *arguments)
    assert said.code == code, said.err
    assert said.err or said.out == "no messages\n"


def test_message_trace_shows_the_steps_in_order(run: Run, mq: RunningBroker) -> None:
    with Producer(
        "shop", nameserver=mq.nameserver, options=ProducerOptions(trace=True)
    ) as producer:
        sent = producer.send(Message("orders", b"two apples"))
    mq.wait_until(lambda: mq.stored("RMQ_SYS_TRACE_TOPIC"), what="the trace")
    (step,) = run("message", "trace", sent.message_id, "--json").json
    assert (step["what"], step["group"], step["is_success"]) == ("Published", "shop", True)
    assert "Published" in run("message", "trace", sent.message_id).out


def test_dlq_shows_and_replays_dead_letters(run: Run, mq: RunningBroker) -> None:
    run("group", "create", "billing")
    assert run("dlq", "list", "--json").json == []
    assert "no group has dead letters" in run("dlq", "list").out
    run("produce", "orders", stdin="poison\nvenom\n")
    commit(mq, "billing", "orders", offset=2)
    give_up(mq, "billing", "orders")
    (box,) = run("dlq", "list", "--json").json
    assert (box["group"], box["dead_letters"], box["not_replayed"]) == ("billing", 2, 2)
    assert [row["body"] for row in run("dlq", "show", "billing", "--json").json] == [
        "poison",
        "venom",
    ]
    assert "poison" in run("dlq", "show", "billing").out
    assert run("dlq", "replay", "billing", stdin="n\n").code == 1
    done = run("dlq", "replay", "billing", "-y", "--max", "1", "--json").json
    assert (done["sent"], done["left"]) == (1, 1)
    assert [m.body for m in mq.stored("%RETRY%billing")] == [b"poison"]
    assert run("dlq", "replay", "billing", "-y", "--to-topic", "--json").json["sent"] == 1
    assert [m.body for m in mq.stored("orders")][-1] == b"venom"
    assert [row["replayed"] for row in run("dlq", "show", "billing", "--json").json] == [True, True]
    assert run("dlq", "replay", "billing", "-y", "--json").json["sent"] == 0
    for verb in ("show", "replay"):
        assert run("dlq", verb, "nobody").code == 4
        assert run("dlq", verb, "billing", "--max", "0").code == 2


def test_transaction_commands_decide_a_transaction(run: Run, mq: RunningBroker) -> None:
    assert "no transaction is pending" in run("transaction", "list").out
    send_half(mq, "orders", b"half")
    (pending,) = run("transaction", "list", "--json").json
    assert (pending["topic"], pending["group"]) == ("orders", "buyers")
    assert "buyers" in run("transaction", "list", "--topic", "orders").out
    assert run("transaction", "recheck", pending["message_id"], "--json").json["topic"] == "orders"
    (pending,) = run("transaction", "list", "--json").json
    assert run("transaction", "commit", pending["message_id"], stdin="n\n").code == 1
    assert mq.stored("orders") == []
    assert run("transaction", "commit", pending["message_id"], "-y").code == 0
    assert [m.body for m in mq.stored("orders")] == [b"half"]
    assert run("transaction", "list", "--json").json == []
    send_half(mq, "orders", b"other half")
    (pending,) = run("transaction", "list", "--json").json
    assert run("transaction", "rollback", pending["offset_id"], "-y", "--json").json
    assert len(mq.stored("orders")) == 1
    for verb in ("commit", "rollback", "recheck"):
        gone = run("transaction", verb, "nothing")
        assert gone.code == 4
        assert "tianzhou transaction list" in gone.err
    assert run("transaction", "list", "--max", "none").code == 2


def test_transaction_commands_list_and_resume_parked_ones(run: Run, mq: RunningBroker) -> None:
    assert "no transaction is parked" in run("transaction", "list", "--parked").out
    send_half(mq, "orders", b"half")
    park(mq)
    assert run("transaction", "list", "--json").json == []
    (parked,) = run("transaction", "list", "--parked", "--json").json
    assert (parked["topic"], parked["group"]) == ("orders", "buyers")
    assert "buyers" in run("transaction", "list", "--parked", "--topic", "orders").out
    listed = run("transaction", "list").out
    assert (
        "no transaction is pending\n1 parked; list them with: tianzhou transaction list" in listed
    )
    assert "parked" not in run("transaction", "list", "--topic", "payments").out
    for verb in ("commit", "rollback", "recheck"):
        refused = run("transaction", verb, parked["message_id"])
        assert refused.code == 4
        assert f"is parked; tianzhou transaction resume {parked['message_id']}" in refused.err
    doctor = run("doctor", "--observe", "0")
    assert "transactions are parked" in doctor.out
    gone = run("transaction", "resume", "nothing")
    assert gone.code == 4
    assert "tianzhou transaction list --parked" in gone.err
    assert run("transaction", "resume", parked["message_id"], "--json").json["topic"] == "orders"
    assert run("transaction", "list", "--parked", "--json").json == []
    (pending,) = run("transaction", "list", "--json").json
    assert pending["checks"] == 0
    assert run("transaction", "commit", pending["message_id"], "-y").code == 0
    assert [m.body for m in mq.stored("orders")] == [b"half"]


def test_scheduled_messages_are_listed_and_cancelled(run: Run, mq: RunningBroker) -> None:
    assert run("scheduled", "list", "--json").json == []
    run("produce", "orders", "--delay", "2h", stdin="later\n")
    (waiting,) = mq.wait_until(lambda: run("scheduled", "list", "--json").json)
    assert waiting["topic"] == "orders"
    assert waiting["deliver_ms"] > waiting["stored_ms"]
    assert waiting["message_id"] in run("scheduled", "list").out
    assert run("scheduled", "cancel", waiting["message_id"], "--json").json["topic"] == "orders"
    mq.clock.advance(hours=3)
    assert mq.stored("orders") == []
    gone = run("scheduled", "cancel", waiting["message_id"])
    assert gone.code == 4
    assert "tianzhou scheduled list" in gone.err
    assert run("scheduled", "list", "--max", "0").code == 2
