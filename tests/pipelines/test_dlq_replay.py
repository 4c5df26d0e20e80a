"""Dead letters on Spark: shown, selected, repaired and replayed, each once, also after a crash."""

import asyncio
import json

import pytest

from pipelines.conftest import Place
from spark.processes import BIN, Program, environment, run
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.sync import Admin, Message, MessageView, Producer
from tianzhou.spark.pipelines.dlq import ReplayRequest, letters, replay
from tianzhou.spark.pipelines.errors import PipelineError

TIANZHOU = str(BIN / "tianzhou")
START_S = 180.0


@pytest.fixture
def group(place: Place) -> str:
    return place.topic("stock")  # a unique name


@pytest.fixture
def origin(place: Place, group: str) -> str:
    """A topic with twelve messages that are dead letters of a group."""
    topic = place.topic("orders")
    with Producer("tests", nameserver=place.nameserver) as producer:
        for n in range(12):
            kind = "bad" if n % 3 == 0 else "good"
            message = Message(
                topic, f"{kind} {n}".encode(), tags=kind, keys=f"K{n}", properties={"colour": "red"}
            )
            producer.send(message)
    asyncio.run(give_up(place, group, topic))
    return topic


async def give_up(place: Place, group: str, topic: str) -> None:
    options = ConsumerOptions(start_from=StartPosition.FIRST)
    consumer = PushConsumer(
        group, nameserver=place.nameserver, subscribe={topic: "*"}, options=options
    )

    @consumer.listen
    async def bury(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction]
        message.retry(-1)

    async with consumer:
        await place.broker.until(lambda: len(place.broker.dead_letters(group)) == 12, within_s=30)


def replayed(place: Place, topic: str) -> list[MessageView]:
    return [m for m in place.broker.stored(topic) if "REPLAY_ID" in m.properties]


def test_letters_shows_the_dead_letters_of_a_group(place: Place, group: str, origin: str) -> None:
    rows = letters(place.spark, group, place.cluster()).collect()
    assert {row.originTopic for row in rows} == {origin}
    assert {row.body for row in rows} >= {"bad 0", "good 1"}


def test_replay_sends_selected_and_repaired_dead_letters_once(
    place: Place, group: str, origin: str
) -> None:
    request = ReplayRequest(group, "tags = 'bad'", {"body": "replace(body, 'bad', 'fixed')"})
    done = replay(place.spark, request, place.cluster())
    found = replayed(place, origin)
    assert done.sent == len(found) == 4
    assert {m.body.decode() for m in found} == {f"fixed {n}" for n in (0, 3, 6, 9)}
    assert {m.tags for m in found} == {"bad"}
    assert all(m.properties["colour"] == "red" for m in found)
    assert all("RETRY_TOPIC" not in m.properties for m in found)
    # A second replay of everything leaves out what was replayed.
    rest = replay(place.spark, ReplayRequest(group, count=3), place.cluster())
    assert rest.sent == 3
    rest = replay(place.spark, ReplayRequest(group), place.cluster())
    assert rest.sent == 5
    assert len(replayed(place, origin)) == 12
    second = ReplayRequest(group, "tags = 'bad'", again=True)
    assert replay(place.spark, second, place.cluster()).sent == 4


def test_replays_of_spark_and_admin_know_each_other(place: Place, group: str, origin: str) -> None:
    with Admin(nameserver=place.nameserver) as admin:
        assert replay(place.spark, ReplayRequest(group, "tags = 'bad'"), place.cluster()).sent == 4
        assert admin.dlq.show(group).not_replayed == 8
        found = admin.dlq.peek(group)
        assert len(admin.dlq.replayed(group, found)) == 4
        # The dashboard replays single messages, the command line the oldest ones.
        assert admin.dlq.replay_messages(group, found).count == 8
        assert replay(place.spark, ReplayRequest(group), place.cluster()).sent == 0
        assert admin.dlq.replay(group).count == 0
        assert admin.dlq.show(group).not_replayed == 0


def test_replay_to_the_group_names_the_original_topic(
    place: Place, group: str, origin: str
) -> None:
    request = ReplayRequest(group, "tags = 'bad'", topic=f"%RETRY%{group}")
    assert replay(place.spark, request, place.cluster()).sent == 4
    found = replayed(place, f"%RETRY%{group}")
    assert [m.properties["RETRY_TOPIC"] for m in found] == [origin] * 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_replay_resumes_without_duplicates(place: Place, group: str, origin: str) -> None:
    """As users do it: inspect, start, lose the process, start again."""
    where = ["-n", place.nameserver]
    shown = run(
        [TIANZHOU, "dlq", "show", group, *where, "--where", "tags = 'bad'", "--json"],
        place.directory,
        environment(),
    )
    assert {row["tags"] for row in json.loads(shown)} == {"bad"}
    assert "bad 0" in {row["body"] for row in json.loads(shown)}
    command = [TIANZHOU, "dlq", "replay", group, *where, "--where", "true", "--to-topic", "-y"]
    program = Program([*command, "--rate", "1"], place.directory / "first", environment())
    try:
        program.wait_for_sight(lambda: len(replayed(place, origin)) >= 2, START_S)
    finally:
        program.kill()
    assert 2 <= len(replayed(place, origin)) < 12, "one a second"
    with Admin(nameserver=place.nameserver) as admin:
        (cut,) = admin.dlq.record(group).runs.values()
        assert not cut.is_done
        shown = json.loads(run([*command, "--json"], place.directory / "first", environment()))
        assert (shown["replay"], shown["sent"], shown["group"]) == (cut.id, 12, group)
        bodies = [m.body for m in replayed(place, origin)]
        assert len(bodies) == len(set(bodies)) == 12
        assert admin.dlq.record(group).runs[cut.id].is_done
        assert admin.dlq.show(group).not_replayed == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"where": "nothing = 1"}, "nothing"),
        ({"changes": {"topic": "'x'"}}, "topic cannot be changed"),
        ({"changes": {"body": "''"}}, "has an empty body after the change; nothing was sent"),
        ({"rate": 0}, "must be above 0, got 0"),
    ],
)
def test_invalid_replay_request_sends_nothing(
    place: Place, group: str, origin: str, changed: dict[str, object], words: str
) -> None:
    with pytest.raises(PipelineError, match=words):
        replay(place.spark, ReplayRequest(group, **changed), place.cluster())  # type: ignore[arg-type]
    assert replayed(place, origin) == []
