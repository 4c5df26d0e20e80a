"""What the tests look at: topics, groups that are well and one that hangs, dead letters and all."""

import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from abuse.raw_client import RawClient
from dashboard.site import Site, now_ms
from e2e.admin_world import commit, give_up, member, send, send_half
from tianzhou.client.core.trace import ConsumeBegun, ConsumeEnded, Published, encode_trace
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode

HOSTILE = "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>'\"=1+1"
TRACED = "7F0000010000AAAABBBBCCCCDDDD0001"


def order(number: int) -> bytes:
    return json.dumps(
        {
            "order": 1000 + number,
            "city": ("Hangzhou", "Berlin", "São Paulo")[number % 3],
            "items": [{"sku": f"A-{number % 7}", "count": number % 4 + 1}],
            "amount": round(12.5 + number * 3.1, 2),
        },
        ensure_ascii=False,
    ).encode()


def fill(mq: RunningBroker) -> None:
    """Messages, offsets and all that waits; no members yet."""
    for name, queues in (("orders", 4), ("payments", 2), ("refunds", 1), ("audit-log", 1)):
        mq.create_topic(name, queues=queues)
    for number in range(40):
        send(
            mq,
            "orders",
            order(number),
            queue_id=number % 4,
            KEYS=f"order-{1000 + number}",
            TAGS="paid" if number % 3 else "new",
            channel="web",
            UNIQ_KEY=f"7F00000100001111222233334444{number:04X}",
        )
    for number in range(12):
        send(mq, "payments", b"payment %d" % number, queue_id=number % 2)
    send(mq, "audit-log", b"seen by two", INNER_MULTI_DISPATCH="%LMQ%alice,%LMQ%bob")
    send(mq, "refunds", b'{"refund": 1}', b"\x00\x01\x02binary\xff", KEYS="refund-1")
    give_up(mq, "shipping", "refunds")
    for queue_id in range(4):
        commit(mq, "shipping", "orders", queue_id=queue_id, offset=10)
        commit(mq, "order-archive", "orders", queue_id=queue_id, offset=7)
    commit(mq, "billing", "payments", queue_id=0, offset=2)
    send_half(mq, "orders", b"half of an order")
    send(
        mq,
        "orders",
        b"later",
        TIMER_DELIVER_MS=str(now_ms() + 7_200_000),
        UNIQ_KEY="7F000001000099998888777766665555",
    )
    _trace(mq)


def _trace(mq: RunningBroker) -> None:
    at = now_ms() - 5_000
    records = [
        Published(
            timestamp_ms=at,
            group="shop",
            topic="orders",
            message_id=TRACED,
            cost_ms=12,
            keys="order-1",
            body_length=100,
        ),
        ConsumeBegun(timestamp_ms=at + 40, group="shipping", request_id="r1", message_id=TRACED),
        ConsumeEnded(
            request_id="r1",
            message_id=TRACED,
            cost_ms=210,
            is_success=False,
            timestamp_ms=at + 250,
            group="shipping",
        ),
        ConsumeBegun(
            timestamp_ms=at + 1_300,
            group="shipping",
            request_id="r2",
            message_id=TRACED,
            retry_times=1,
        ),
        ConsumeEnded(
            request_id="r2",
            message_id=TRACED,
            cost_ms=90,
            timestamp_ms=at + 1_390,
            group="shipping",
        ),
    ]
    send(mq, "RMQ_SYS_TRACE_TOPIC", encode_trace(records), KEYS=TRACED, group="tracers")


def pull(client: RawClient, group: str, topic: str, queue_id: int, offset: int) -> None:
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    client.ask(RequestCode.PULL_MESSAGE, ext)


@contextmanager
def living(site: Site) -> Generator[None]:
    """A world with people in it."""
    fill(site.mq)
    with connected(site):
        yield


@contextmanager
def connected(site: Site) -> Generator[None]:
    """Shipping has read everything; billing has payments in hand and does not get on."""
    with ExitStack() as stack:
        for number in range(2):
            client = stack.enter_context(
                member(site.mq, "shipping", "orders", f"10.0.0.{number + 7}@worker-{number + 1}")
            )
            for queue_id in range(2 * number, 2 * number + 2):
                pull(client, "shipping", "orders", queue_id, 10)
        client = stack.enter_context(member(site.mq, "billing", "payments", "10.0.0.9@billing-1"))
        pull(client, "billing", "payments", 0, 2)
        pull(client, "billing", "payments", 1, 0)
        site.wait_for_stuck("billing")
        yield
