"""Only a master executes requests that change anything; every other member says who to ask."""

import pytest

from tianzhou.broker.rejections import REFUSED
from tianzhou.broker.replica.gate import MASTER_ONLY
from tianzhou.broker.replica.mode import OnCommitted
from tianzhou.broker.replica.standalone import Standalone
from tianzhou.broker.role import MASTER_ADDRESS, Role
from tianzhou.broker.router import FAST_PATH
from tianzhou.record.ids import decode_offset_id
from tianzhou.replication.durability import Outcome
from tianzhou.testing.changing_requests import EXAMPLES, GROUP, TOPIC, Example, Known
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import (
    REJECTED_BY_BROKER,
    SERVED_BY_BROKER,
    RequestCode,
    ResponseCode,
)
from tianzhou.wire._generated_effects import BROKER_EFFECTS, Effect
from tianzhou.wire.codec import Header
from tianzhou.wire.heartbeat import ConsumerData, HeartbeatData

MASTER = "10.0.0.9:10911"
RAFT_ONLY = {RequestCode.CHANGE_RAFT}
"""Not a request for a broker without a Raft group; tests/replication sends it to one."""
CHANGING = sorted(
    code for code, effect in BROKER_EFFECTS.items() if effect in MASTER_ONLY and code not in REFUSED
)


class HeldCommits(Standalone):
    """A mode in which changes of tables are committed later, once a test switches that on."""

    waiting: list[OnCommitted] | None = None

    def commit(self, then: OnCommitted) -> bool:
        if self.waiting is not None:
            self.waiting.append(then)
        return self.waiting is not None


def hold_commits(broker: SmallBroker) -> list[OnCommitted]:
    assert isinstance(broker.mode, HeldCommits)
    waiting = broker.mode.waiting = []
    return waiting


def small_broker() -> SmallBroker:
    return SmallBroker(mode=lambda config, store, _: HeldCommits(config.name, store))


@pytest.fixture
def broker() -> SmallBroker:
    return small_broker()


@pytest.fixture
def known(broker: SmallBroker) -> Known:
    return prepared(broker)


def prepared(broker: SmallBroker) -> Known:
    """Give a broker everything that the examples need."""
    stored = broker.send(TOPIC)
    broker.ask(RequestCode.HEART_BEAT, {}, heartbeat(GROUP))
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit(GROUP, 1))
    half = broker.send(TOPIC, named={"TRAN_MSG": "true", "PGROUP": "producers"}, sys_flag=4)
    deliver_ms = broker.clock.now_ms() + 60_000
    timed = broker.send(TOPIC, named={"TIMER_DELIVER_MS": str(deliver_ms)})
    broker.tick()
    broker.save_offsets()
    half_id = half.ext["msgId"]
    return Known(
        broker.config.name,
        record_at=decode_offset_id(stored.ext["msgId"]).physical_offset,
        half_at=decode_offset_id(half_id).physical_offset,
        half_id=half_id,
        recall_handle=timed.ext["recallHandle"],
    )


def heartbeat(*groups: str) -> bytes:
    told = HeartbeatData(
        client_id="c", consumer_data_set=tuple(ConsumerData(group_name=name) for name in groups)
    )
    return fastjson.encode(told)


def commit(group: str, offset: int) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": TOPIC,
        "queueId": "0",
        "commitOffset": str(offset),
    }


def demote(broker: SmallBroker) -> None:
    broker.store.stop_writing()
    broker.slices.base.writer.give_up()
    broker.role_state.take(Role.SLAVE, 1, 1)
    broker.role_state.set_master(MASTER)


def ask(broker: SmallBroker, code: RequestCode, example: Example) -> Header:
    peer = RecordingPeer()
    answer = broker.ask(code, example.ext, example.body, peer=peer)
    if answer is None:
        broker.flush()
        (answer,) = peer.answers()
    return answer


def state(broker: SmallBroker) -> tuple[object, ...]:
    tables = broker.slices.groups.tables
    return (
        len(broker.disk.calls),
        broker.store.log.end,
        fastjson.encode(broker.slices.topics.topics.table()),
        fastjson.encode(tables.groups.table()),
        fastjson.encode(tables.offsets.table()),
    )


def test_every_request_a_broker_serves_has_an_effect(broker: SmallBroker) -> None:
    assert BROKER_EFFECTS.keys() == SERVED_BY_BROKER | REJECTED_BY_BROKER
    assert broker.requests.router.codes | FAST_PATH == BROKER_EFFECTS.keys()


def test_every_request_that_changes_shared_state_has_an_example() -> None:
    assert EXAMPLES.keys() == set(CHANGING)


def test_master_executes_every_example(broker: SmallBroker, known: Known) -> None:
    """Otherwise a replica that rejects them would prove nothing."""
    for code, example in EXAMPLES.items():
        if code in RAFT_ONLY:
            continue
        before = state(broker)
        answer = ask(broker, code, example(known))
        is_reply = code in (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
        # A reply to a requester that left is stored, and its sender gets an error.
        expected = ResponseCode.SYSTEM_ERROR if is_reply else ResponseCode.SUCCESS
        assert answer.code == expected, (code.name, answer.remark)
        in_memory = BROKER_EFFECTS[code] is Effect.LOCKS
        nothing_due = code in (
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
        )
        assert in_memory or nothing_due or state(broker) != before, code.name


@pytest.mark.parametrize("code", CHANGING, ids=lambda code: RequestCode(code).name)
def test_replica_rejects_request_that_changes_shared_state(
    broker: SmallBroker, known: Known, code: RequestCode
) -> None:
    demote(broker)
    before = state(broker)
    answer = ask(broker, code, EXAMPLES[code](known))
    broker.flush()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer.remark
    assert MASTER in (answer.remark or "")
    assert answer.ext.get(MASTER_ADDRESS) == MASTER
    assert state(broker) == before


HARMLESS = sorted(
    code
    for code, effect in BROKER_EFFECTS.items()
    if effect in (Effect.NONE, Effect.SESSION, Effect.LOCAL)
    and code not in REFUSED
    and code not in (RequestCode.PROMOTE_BROKER, RequestCode.STEP_DOWN_BROKER)
)
"""Promotion is a change of its own; tests/replication sends it."""


def everything(known: Known) -> dict[str, str]:
    """Whatever a request may read: the fields of all examples, and then some."""
    ext: dict[str, str] = {}
    for example in EXAMPLES.values():
        ext |= example(known).ext
    return ext | {
        "topic": TOPIC, "group": GROUP, "groupName": GROUP, "consumerGroup": GROUP,
        "producerGroup": "producers", "queueId": "0", "timestamp": "0", "offset": "0",
        "commitOffset": "0", "queueOffset": "0", "key": "k", "maxNum": "1", "beginTimestamp": "0",
        "endTimestamp": "1", "clientID": "c", "clientId": "c", "index": "0", "count": "1",
        "statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC, "isOrder": "false",
        "msgId": known.half_id, "filterGroups": GROUP, "compareGroup": GROUP,
        "first": "0", "number": "0", "limit": "1",
    }  # fmt: skip


@pytest.mark.parametrize("is_replica", [False, True], ids=["master", "replica"])
@pytest.mark.parametrize("code", HARMLESS, ids=lambda code: RequestCode(code).name)
def test_request_declared_read_only_changes_no_shared_state(
    broker: SmallBroker, known: Known, code: RequestCode, is_replica: bool
) -> None:
    """Otherwise a change whose effect is declared wrongly would pass the gate."""
    if is_replica:
        demote(broker)
    before = state(broker)[1:]
    broker.ask(code, everything(known), heartbeat(GROUP))
    broker.flush()
    assert state(broker)[1:] == before


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    ],
    ids=lambda code: code.name,
)
def test_state_comparison_detects_a_request_that_changes_state(
    broker: SmallBroker, known: Known, code: RequestCode
) -> None:
    before = state(broker)[1:]
    broker.ask(code, everything(known))
    assert state(broker)[1:] != before


def test_replica_names_no_address_when_it_knows_no_master(
    broker: SmallBroker, known: Known
) -> None:
    demote(broker)
    broker.role_state.set_master("")
    code = RequestCode.DELETE_TOPIC_IN_BROKER
    answer = ask(broker, code, EXAMPLES[code](known))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "no master is known" in (answer.remark or "")
    assert MASTER_ADDRESS not in answer.ext


@pytest.mark.usefixtures("known")
def test_replica_creates_no_group_or_topic_for_clients(broker: SmallBroker) -> None:
    demote(broker)
    before = state(broker)
    peer = RecordingPeer()
    answer = broker.ask(RequestCode.HEART_BEAT, {}, heartbeat("fresh"), peer=peer)
    assert answer is not None
    assert answer.code == 0
    assert "fresh" in broker.slices.groups.tables.sessions.consumers, (
        "its consumer is served all the same"
    )
    pull = {
        "consumerGroup": "fresher",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    found = broker.ask(RequestCode.PULL_MESSAGE, pull)
    assert found is not None
    assert found.code == 0
    broker.flush()
    assert state(broker) == before


@pytest.mark.usefixtures("known")
def test_replica_accepts_the_offset_of_an_unknown_group(broker: SmallBroker) -> None:
    demote(broker)
    groups = fastjson.encode(broker.slices.groups.tables.groups.table())
    answer = broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit("fresh", 1))
    assert answer is not None
    assert answer.code == 0
    assert broker.slices.groups.tables.offsets.get("fresh", TOPIC, 0) == 1
    assert fastjson.encode(broker.slices.groups.tables.groups.table()) == groups


def test_table_change_in_a_raft_group_responds_after_the_commit(
    broker: SmallBroker, known: Known
) -> None:
    waiting = hold_commits(broker)
    peer = RecordingPeer()
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    example = EXAMPLES[code](known)
    assert broker.ask(code, example.ext, example.body, peer=peer) is None
    (committed,) = waiting
    committed(Outcome.DURABLE)
    (answer,) = peer.answers()
    assert answer.code == 0


@pytest.mark.parametrize("outcome", [Outcome.NO_QUORUM, Outcome.NOT_MASTER])
def test_table_change_that_may_not_be_committed_does_not_report_success(
    broker: SmallBroker, known: Known, outcome: Outcome
) -> None:
    waiting = hold_commits(broker)
    code, peer = RequestCode.DELETE_SUBSCRIPTIONGROUP, RecordingPeer()
    example = EXAMPLES[code](known)
    assert broker.ask(code, example.ext, example.body, peer=peer) is None
    (committed,) = waiting
    committed(outcome)
    (answer,) = peer.answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "unknown" in (answer.remark or "")
