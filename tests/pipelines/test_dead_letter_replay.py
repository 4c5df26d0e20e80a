"""Dead letters are shown, chosen, repaired and sent again, each once, also after a crash."""

import asyncio
import json

import pytest

from pipelines.conftest import Place
from spark.processes import BIN, Program, environment, run
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.sync import Message, MessageView, Producer
from tianzhou.spark.options import read_options_of
from tianzhou.spark.pipelines import dead_letters
from tianzhou.spark.pipelines.dead_letters import ReplayRequest, letters, replay
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.replays import Replays

TIANZHOU = str(BIN / "tianzhou")
START_S = 180.0


@pytest.fixture
def group(place: Place) -> str:
    return place.topic("stock")  # a name of its own


@pytest.fixture
def origin(place: Place, group: str) -> str:
    """A topic of which a group has given up twelve messages."""
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


@pytest.fixture
def replays(place: Place) -> Replays:
    return Replays(str(place.directory / "replays"))


def test_letters_and_counts_show_the_dead_letters_of_a_group(
    place: Place, group: str, origin: str
) -> None:
    rows = letters(place.spark, group, place.cluster()).collect()
    assert {row.originTopic for row in rows} == {origin}
    assert {row.body for row in rows} >= {"bad 0", "good 1"}
    options = read_options_of({"nameserver": place.nameserver, "topic": "TBW102"}, is_stream=False)
    assert dead_letters.dead_letter_counts(options)[group] == 12


def test_replay_sends_selected_and_repaired_dead_letters_once(
    place: Place, group: str, origin: str, replays: Replays
) -> None:
    request = ReplayRequest(group, "tags = 'bad'", {"body": "replace(body, 'bad', 'mended')"})
    done = replay(place.spark, request, place.cluster(), replays)
    found = replayed(place, origin)
    assert done.sent == len(found) == 4
    assert {m.body.decode() for m in found} == {f"mended {n}" for n in (0, 3, 6, 9)}
    assert {m.tags for m in found} == {"bad"}
    assert all(m.properties["colour"] == "red" for m in found)
    assert all("RETRY_TOPIC" not in m.properties for m in found)
    # A second replay of everything leaves out what was replayed.
    rest = replay(place.spark, ReplayRequest(group), place.cluster(), replays)
    assert rest.sent == 8
    assert len(replayed(place, origin)) == 12
    rows = replays.table.read(place.spark).collect()
    assert len({row.origin for row in rows}) == len(rows) == 12
    assert {row.sentTo for row in rows} == {origin}
    second = ReplayRequest(group, "tags = 'bad'", again=True)
    again = replay(place.spark, second, place.cluster(), replays)
    assert again.sent == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_replay_resumes_without_duplicates(place: Place, group: str, origin: str) -> None:
    """As users do it: inspect, start, lose the process, start again."""
    where = ["-n", place.nameserver]
    shown = run([TIANZHOU, "dead-letters", "show", group, *where, "--where", "tags = 'bad'",
                 "--json"], place.directory, environment())  # fmt: skip
    assert {row["tags"] for row in json.loads(shown)} == {"bad"}
    assert "bad 0" in {row["body"] for row in json.loads(shown)}
    command = [TIANZHOU, "dead-letters", "replay", group, *where, "--record", "replays"]
    program = Program([*command, "--rate", "1"], place.directory / "first", environment())
    try:
        program.wait_for_sight(lambda: len(replayed(place, origin)) >= 2, START_S)
    finally:
        program.kill()
    assert 2 <= len(replayed(place, origin)) < 12, "one a second"
    record = Replays(str(place.directory / "first" / "replays"))
    (cut,) = record.all()
    assert not cut.is_done
    said = json.loads(run([*command, "--json"], place.directory / "first", environment()))
    assert (said["replay"], said["sent"], said["group"]) == (cut.id, 12, group)
    bodies = [m.body for m in replayed(place, origin)]
    assert len(bodies) == len(set(bodies)) == 12
    assert record.table.read(place.spark).count() == 12


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
    place: Place, group: str, origin: str, replays: Replays, changed: dict[str, object], words: str
) -> None:
    with pytest.raises(PipelineError, match=words):
        replay(place.spark, ReplayRequest(group, **changed), place.cluster(), replays)  # type: ignore[arg-type]
    assert replayed(place, origin) == []
