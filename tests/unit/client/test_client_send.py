"""The machine of a send: every cell of its table, and scenarios in text form."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tianzhou.client.core.routing import TopicRoute, queue_for_key
from tianzhou.client.core.send import (
    TABLE,
    Action,
    Event,
    Failure,
    SendMachine,
    SendPolicy,
    State,
)
from tianzhou.client.core.send_request import SendResult, SendStatus
from tianzhou.client.errors import (
    ClientClosed,
    ConnectionLost,
    TopicNotFound,
    Unreachable,
    remote_error,
)
from tianzhou.client.options import ProducerOptions
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.queues import MessageQueue

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "send").glob("*.txt"))
ERRORS = {
    "lost": lambda: ConnectionLost("a:1", 310),
    "unreachable": lambda: Unreachable("a:1", "refused"),
    "no_topic": lambda: remote_error("a:1", ResponseCode.TOPIC_NOT_EXIST, None),
    "no_permission": lambda: remote_error("a:1", ResponseCode.NO_PERMISSION, None),
    "busy": lambda: remote_error("a:1", ResponseCode.SYSTEM_BUSY, None),
    "illegal": lambda: remote_error("a:1", ResponseCode.MESSAGE_ILLEGAL, None),
    "invalid": lambda: remote_error("a:1", ResponseCode.INVALID_PARAMETER, None),
    "topic_not_found": lambda: TopicNotFound("t"),
    "closed": lambda: ClientClosed("closed"),
}


def route_of(names: Sequence[str]) -> TopicRoute:
    queues = tuple(MessageQueue(topic="t", broker_name=name, queue_id=0) for name in names)
    return TopicRoute("t", queues, queues, {name: {0: f"{name}:1"} for name in names})


def result_of(status: str) -> list[SendResult]:
    queue = MessageQueue(topic="t", broker_name="a", queue_id=0)
    return [
        SendResult(
            status=SendStatus[status.upper()],
            message_id="1",
            offset_id="2",
            queue=queue,
            queue_offset=0,
        )
    ]


def by_key(route: TopicRoute) -> MessageQueue:
    return queue_for_key(route.write_queues, "k")


class Script:
    """Plays one scenario: directives, then `TIME EVENT [DETAIL] -> ACTION STATE [UNTIL]`."""

    def __init__(self) -> None:
        self.route: TopicRoute | None = None
        self.limit_s = 3.0
        self.is_keyed = False
        self.options = ProducerOptions()
        self.made: SendMachine | None = None

    def machine(self) -> SendMachine:
        if self.made is None:
            policy = SendPolicy(self.options, lambda _topic: self.route, lambda _count: 0)
            pick = by_key if self.is_keyed else None
            self.made = SendMachine(policy, "t", pick, now_s=0.0, limit_s=self.limit_s)
        return self.made

    def play(self, line: str) -> None:
        word, *rest = line.split(" ")
        if word == "brokers":
            self.route = route_of(rest)
        elif word == "limit":
            self.limit_s = float(rest[0])
        elif word == "pick":
            self.is_keyed = True
        elif word == "retry_not_store_ok":
            self.options = ProducerOptions(retry_not_store_ok=True)
        elif word == "outcome":
            outcome = self.machine().outcome
            error = outcome.error() if isinstance(outcome, Failure) else None
            assert ("stored" if error is None else type(error).__name__) == rest[0]
        else:
            self.step(line)

    def step(self, line: str) -> None:
        given, expected = line.split(" -> ")
        time, name, *detail = given.split(" ")
        machine = self.machine()
        action = machine.handle(Event[name.upper()], float(time), self.detail(name, detail))
        action_name, state, *until = expected.split(" ")
        assert (action.value, machine.state.name.lower()) == (action_name, state)
        if until:
            assert machine.until_s == pytest.approx(float(until[0]))

    def detail(self, event: str, words: list[str]) -> object:
        if event == "routed":
            return self.route
        if event == "stored":
            return result_of(words[0] if words else "send_ok")
        return ERRORS[words[0]]() if words else None


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_send_scenario_has_the_expected_actions(path: Path) -> None:
    script = Script()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            try:
                script.play(line)
            except AssertionError as error:
                raise AssertionError(f"line {number}, {line!r}: {error}") from error


def test_send_table_defines_every_cell() -> None:
    assert {(state, event) for state, row in TABLE.items() for event in row} == {
        (state, event) for state in State for event in Event
    }


def test_send_impossible_event_is_an_assertion() -> None:
    machine = Script().machine()
    with pytest.raises(AssertionError, match="ROUTING"):
        machine.handle(Event.STORED, 0.0, ())


def test_send_every_state_and_possible_event_has_a_scenario() -> None:
    """The cells that are neither impossible nor without effect are all played."""
    played: set[tuple[State, Event]] = set()
    for path in SCENARIOS:
        script = Script()
        for line in path.read_text(encoding="utf-8").splitlines():
            if " -> " in line:
                before = script.machine().state
                played.add((before, Event[line.split(" ")[1].upper()]))
            if line and not line.startswith("#"):
                script.play(line)
    possible = {
        (state, event)
        for state, row in TABLE.items()
        for event, cell in row.items()
        if cell.__name__ not in ("_impossible", "_ignore")
    }
    assert possible - played == {
        (State.ROUTING, Event.FAILED),
        (State.ROUTING, Event.ABORTED),
        (State.IN_FLIGHT, Event.ABORTED),
        (State.REFRESHING, Event.ABORTED),
        (State.PAUSED, Event.ABORTED),
        (State.PAUSED, Event.FAILED),
        (State.CONNECTING, Event.EXPIRED),
    }, "each of these gives up, or is an Unreachable like a failed connection"


def test_send_closed_policy_stops_retries() -> None:
    script = Script()
    script.route = route_of(["a", "b"])
    machine = script.machine()
    machine.handle(Event.ROUTED, 0.0, script.route)
    machine.policy.is_closed = True
    assert machine.handle(Event.FAILED, 0.1, Unreachable("a:1", "refused")) is Action.DONE


def test_send_unconnected_deadline_counts_as_unreachable() -> None:
    script = Script()
    script.route = route_of(["a", "b"])
    machine = script.machine()
    machine.handle(Event.ROUTED, 0.0, script.route)
    assert machine.handle(Event.EXPIRED, 1.5) is Action.RETRY
    assert isinstance(machine.tries[0].error, Unreachable)
