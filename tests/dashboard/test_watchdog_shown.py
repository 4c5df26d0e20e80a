"""The watchdog and real consumers: four ways to stand still, each in log, metric and page."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from clients.waiting import wait_until
from dashboard.site import Site, ask
from tianzhou.broker.observe.watchdog import Finding, Kind
from tianzhou.client import ConsumerOptions, Message, ReceivedMessage
from tianzhou.client.core.assigned_queue import FlowLimits
from tianzhou.client.core.assignment import Occasion
from tianzhou.client.sync import Producer, PushConsumer
from tianzhou.wire.queues import MessageQueue

pytestmark = pytest.mark.slow

Listener = Callable[[ReceivedMessage], None]
GROUPS = {kind: f"readers-{kind.value.replace('_', '-')}" for kind in Kind}
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as made:
        yield made


def first_queue(occasion: Occasion) -> list[MessageQueue]:
    """A rule that leaves out what is not its own: members with different rules do that."""
    return [queue for queue in occasion.queues if queue.queue_id == 0]


def takes(_message: ReceivedMessage) -> None:
    """All is well."""


def fails(_message: ReceivedMessage) -> None:
    raise ValueError("it can't be handled")


def started(
    stack: ExitStack, site: Site, kind: Kind, listener: Listener, options: ConsumerOptions
) -> None:
    consumer = PushConsumer(
        GROUPS[kind], nameserver=site.mq.nameserver, subscribe={"orders": "*"}, options=options
    )
    consumer.listen(listener)
    stack.enter_context(consumer)


def events(site: Site) -> dict[Kind, Finding]:
    found = site.mq._running().events()
    return {e.kind: e for e in found if e.group == GROUPS[e.kind] and e.topic == "orders"}


def metric(site: Site, name: str) -> dict[str, float]:
    text = ask(site.port, "/metrics").text
    return {
        sample.labels["kind"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_watchdog_findings_of_every_kind_are_logged_and_shown(
    site: Site, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    site.mq.create_topic("orders", queues=2)
    go_on = threading.Event()

    def hangs(_message: ReceivedMessage) -> None:
        go_on.wait()

    def hangs_at_the_first(message: ReceivedMessage) -> None:
        if message.queue_offset == 0:
            go_on.wait()

    caplog.set_level(logging.WARNING, "tianzhou.broker")
    with ExitStack() as stack:
        producer = stack.enter_context(Producer("shop", nameserver=site.mq.nameserver))
        one_by_one = ConsumerOptions(concurrency=1, flow=FlowLimits(queue_count=1), pull_count=1)
        for kind, listener, options in (
            (Kind.UNOWNED, takes, ConsumerOptions(strategy=first_queue)),
            (Kind.NOT_PULLED, hangs, one_by_one),
            (Kind.FROZEN, hangs_at_the_first, ConsumerOptions(long_poll_s=0.5)),
            (Kind.BLOCKED, fails, ConsumerOptions(orderly=True, suspend_s=0.1)),
        ):
            started(stack, site, kind, listener, options)
        stack.callback(go_on.set)  # before consumers wait for their listeners
        queues = [
            MessageQueue(topic="orders", broker_name=site.mq.name, queue_id=n) for n in range(2)
        ]
        wanted = {Kind.UNOWNED, Kind.NOT_PULLED, Kind.FROZEN, Kind.BLOCKED}

        def are_found() -> bool:
            for queue in queues:  # messages go on coming, as in life
                producer.send(Message("orders", b"order", keys=["o-1"]), queue=queue)
            return wanted <= {kind for kind, e in events(site).items() if not e.ended_ms}

        wait_until(are_found, within_s=WITHIN_S, what="all four are found")
        found = events(site)
        page.goto("/")
        for kind in wanted:
            told = [r for r in caplog.records if r.message == f"group.{kind.value}"]
            assert told, kind
            assert metric(site, "tianzhou_watchdog_findings")[kind.value] >= 1
            assert metric(site, "tianzhou_watchdog_found_total")[kind.value] >= 1
            expect(page.locator(".alarms")).to_contain_text(found[kind].group)
        for kind in wanted:
            page.goto(f"/groups/{GROUPS[kind]}")
            expect(page.locator(".alarms")).to_contain_text(kind.value.replace("_", " "))
            expect(page.locator("#live-queues")).to_contain_text("stuck")
        # Which message blocks, and for how long.
        blocked = found[Kind.BLOCKED]
        assert blocked.message_id == site.mq.stored("orders", blocked.queue_id)[0].message_id
        assert f"{blocked.message_id} at offset 0" in blocked.text
        assert blocked.stuck_s >= 1
