"""Administration as part of a load: creating and deleting topics and groups, resets, settings and
members, each request sent to any member of the cluster, whether or not it is the master.

One administrator sends one request after the other, so the final value of a name follows from its
own requests. Between them it sends messages to its topics. It is a `Foreign` of a load: give
`administrators(seed)` to a `Play`, with any scenario.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Final, NamedTuple

from tianzhou.base.errors import TianzhouError
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record import properties
from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.cluster import PAUSE_S, Broker, Cluster
from tianzhou.testing.chaos.history import (
    ANY,
    FOREVER,
    Change,
    History,
    Outcome,
    Placed,
    View,
    offsets_name,
    offsets_value,
)
from tianzhou.testing.kit.patience import Patience
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.names import DEFAULT_TOPIC
from tianzhou.wire.queues import decode_queue_offsets
from tianzhou.wire.raft_bodies import decode_raft_view
from tianzhou.wire.tables import (
    decode_consumer_offsets,
    decode_group_table,
    decode_topic_table,
)

CLIENT: Final = "administrator"
TOPICS: Final = ("admin-topic-0", "admin-topic-1")
GROUPS: Final = ("admin-group-0", "admin-group-1")
LEARNER: Final = "n9"
QUEUES: Final = 2
ASK_S: Final = 4.0
"""Longer than a leader waits for its majority."""
EQUAL_S: Final = 40.0
"""Slaves request their master's tables at least every ten seconds."""
ENOUGH: Final = 5
"""Messages that an administrator stores in its topics, at least, and changes of each outcome: rules
that found nothing must have seen some."""
ENOUGH_S: Final = 20.0
NOT_DONE: Final = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.NO_PERMISSION,
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)
"""Codes which mean that nothing was changed or stored."""


class Asked(NamedTuple):
    """A request, and the name whose value it changes, if that is compared at the end."""

    code: RequestCode
    ext: dict[str, str]
    body: bytes = b""
    name: str = ""
    value: str | None = None


class Administering:
    """Owner: its thread, from creation to `stop_producing`."""

    group: str | None = None

    def __init__(self, cluster: Cluster, history: History, dice: Random) -> None:
        self._brokers = list(cluster.brokers)
        self._history = history
        self._dice = dice
        self._serial = 0
        self._draws: list[Callable[[], Asked]] = [
            *[self._create_topic] * 4,
            self._delete_topic,
            *[self._create_group] * 2,
            self._delete_group,
            self._reset,
            self._configure,
        ]
        if all(broker.raft_id for broker in self._brokers):
            self._draws += [self._add_learner, self._remove_learner]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-admin", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            self._change(self._dice.choice(self._draws)())
            for broker in self._brokers:
                self._send(broker, self._dice.choice(TOPICS))

    # Requests

    def _create_topic(self) -> Asked:
        topic, perm = self._dice.choice(TOPICS), self._dice.choice(("6", "7"))
        ext = {
            "topic": topic,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "perm": perm,
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        return Asked(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, b"", topic, perm)

    def _delete_topic(self) -> Asked:
        topic = self._dice.choice(TOPICS)
        return Asked(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, b"", topic, None)

    def _create_group(self) -> Asked:
        name, retries = self._dice.choice(GROUPS), self._dice.randrange(1, 9)
        body = fastjson.encode({"groupName": name, "retryMaxTimes": retries})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return Asked(code, {}, body, name, str(retries))

    def _delete_group(self) -> Asked:
        name = self._dice.choice(GROUPS)
        ext = {"groupName": name, "cleanOffset": "true"}
        return Asked(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, b"", name, None)

    def _reset(self) -> Asked:
        topic, group = self._dice.choice(TOPICS), self._dice.choice(GROUPS)
        ext = {
            "topic": topic,
            "group": group,
            "timestamp": self._dice.choice(("0", "-1")),
            "isForce": "true",
        }
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return Asked(code, ext, b"", offsets_name(group, topic), ANY)

    def _configure(self) -> Asked:
        body = b"topics_max=%d" % self._dice.randrange(5_000, 9_999)
        return Asked(RequestCode.UPDATE_BROKER_CONFIG, {}, body)

    def _add_learner(self) -> Asked:
        ext = {"action": "learner", "member": LEARNER, "address": "127.0.0.1:9"}
        return Asked(RequestCode.CHANGE_RAFT, ext, b"", LEARNER, "learner")

    def _remove_learner(self) -> Asked:
        ext = {"action": "remove", "member": LEARNER}
        return Asked(RequestCode.CHANGE_RAFT, ext, b"", LEARNER, None)

    # Asking

    def _change(self, asked: Asked) -> None:
        broker = self._dice.choice(self._brokers)
        began = time.monotonic()
        outcome, status, _, body = self._ask(broker, asked)
        ended = FOREVER if outcome is Outcome.UNKNOWN else time.monotonic()
        value = asked.value
        if value == ANY and outcome is Outcome.OK:  # the response says what the offsets are now
            offsets = decode_queue_offsets(body)
            value = offsets_value({queue.queue_id: offset for queue, offset in offsets.items()})
        row = Change(
            CLIENT, asked.code.name, asked.name, value, broker.name, began, ended, outcome, status
        )
        with self._history.adding:
            self._history.changes.append(row)

    def _send(self, broker: Broker, topic: str) -> None:
        """Send one message to a topic that may not exist, at a broker that may not accept it."""
        self._serial += 1
        value, queue_id = f"{CLIENT}-{self._serial}", self._dice.randrange(QUEUES)
        fields = SendMessageV2Request(
            producer_group=CLIENT,
            topic=topic,
            default_topic="none",
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp_ms=0,
            flag=0,
            properties=properties.encode({"UNIQ_KEY": value}).decode(),
        )
        asked = Asked(RequestCode.SEND_MESSAGE_V2, fields.to_ext(), value.encode())
        began = time.monotonic()
        outcome, _, ext, _ = self._ask(broker, asked)
        if outcome is Outcome.OK:
            place = topic, int(ext["queueId"]), int(ext["queueOffset"])
            with self._history.adding:
                self._history.placed.append(Placed(value, *place, began, time.monotonic()))

    def _ask(self, broker: Broker, asked: Asked) -> tuple[Outcome, str, dict[str, str], bytes]:
        try:
            with BlockingPeer(broker.address, timeout_s=ASK_S) as peer:
                answer, body = peer.call(asked.code, asked.ext, asked.body)
        except TianzhouError as error:
            # A connection that was never established changed nothing; one that broke may have.
            never = "nothing answers" in str(error)
            return (Outcome.REFUSED if never else Outcome.UNKNOWN), str(error), {}, b""
        if answer.code == ResponseCode.SUCCESS:
            return Outcome.OK, "", answer.ext, body
        outcome = Outcome.REFUSED if answer.code in NOT_DONE else Outcome.UNKNOWN
        return outcome, f"{answer.code}: {answer.remark}", {}, b""

    # Foreign

    def stop_producing(self) -> None:
        """Stop sending requests once the history has enough of everything to be checked."""
        history = self._history
        patience = Patience(ENOUGH_S, progress=lambda: (len(history.placed), len(history.changes)))
        while not self._is_enough() and self._thread.is_alive() and not patience.is_over():
            time.sleep(PAUSE_S)
        self._over.set()
        self._thread.join()

    def _is_enough(self) -> bool:
        with self._history.adding:
            placed = len(self._history.placed)
            outcomes = Counter(change.outcome for change in self._history.changes if change.name)
        wanted = [placed, outcomes[Outcome.OK]]
        if len(self._brokers) > 1:  # a single broker need not reject anything
            wanted.append(outcomes[Outcome.REFUSED])
        return min(wanted) >= ENOUGH

    def received(self) -> set[str]:
        return set()

    def stop(self) -> None:
        """Record what every member shows, once all show the same."""
        self.stop_producing()
        if self._history.views:
            return
        patience = Patience(EQUAL_S)
        while True:
            views = [view_of(broker) for broker in self._brokers if broker.server.is_alive]
            is_equal = len({(str(view.names), str(view.stored)) for view in views}) <= 1
            if is_equal or patience.is_over():
                self._history.views += views
                return
            time.sleep(PAUSE_S)


def view_of(broker: Broker) -> View:
    """A member's view of everything that administrators change."""
    with BlockingPeer(broker.address) as peer:
        topics = decode_topic_table(peer.call(RequestCode.GET_ALL_TOPIC_CONFIG)[1])
        groups = decode_group_table(peer.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)[1])
        offsets = decode_consumer_offsets(peer.call(RequestCode.GET_ALL_CONSUMER_OFFSET)[1])
        answer, body = peer.call(RequestCode.VIEW_RAFT)
    names: dict[str, str | None] = {}
    for name in TOPICS:
        topic = topics.topic_config_table.get(name)
        names[name] = None if topic is None else str(topic.perm)
    for name in GROUPS:
        group = groups.subscription_group_table.get(name)
        names[name] = None if group is None else str(group.retry_max_times)
    for pair in product(GROUPS, TOPICS):
        row = offsets.offset_table.get("@".join(reversed(pair)), {})
        names[offsets_name(*pair)] = offsets_value(row)
    if answer.code == ResponseCode.SUCCESS:
        members = {peer.name for peer in decode_raft_view(body).peers}
        names[LEARNER] = "learner" if LEARNER in members else None
    stored = {
        (topic, int(view.queue_id), int(view.queue_offset)): bytes(view.body).decode()
        for topic in TOPICS
        if names[topic] is not None
        for view in looking.shown(broker.address, topic, QUEUES)
    }
    return View(broker.name, names, stored)


def administrators(seed: int) -> Callable[[Cluster, History], Administering]:
    return lambda cluster, history: Administering(cluster, history, Random(f"admin {seed}"))
