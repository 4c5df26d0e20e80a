"""What tests of administration do as clients: send, commit, send back."""

from collections.abc import Generator
from contextlib import contextmanager

from abuse.raw_client import RawClient, heartbeat_of, send_v2
from tianzhou.record import flags
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode

NOW = "1700000000000"


def unique_id(number: int) -> str:
    """As long as a real id; the middle is not a valid port."""
    return f"7F{number:030X}".replace("0000", "FFFF", 1)


def send(
    mq: RunningBroker,
    topic: str,
    *bodies: bytes,
    queue_id: int = 0,
    sys_flag: int = 0,
    group: str = "writers",
    **named: object,
) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
    fields = send_v2(topic, queue_id=queue_id, properties=text, f=str(sys_flag), a=group)
    with RawClient(mq.broker) as client:
        for body in bodies:
            answer = client.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
            assert answer.code == 0, answer.remark


def send_half(
    mq: RunningBroker, topic: str, body: bytes, *, group: str = "buyers", sys_flag: int = 0
) -> None:
    send(
        mq,
        topic,
        body,
        sys_flag=sys_flag | flags.TRANSACTION_PREPARED,
        group=group,
        TRAN_MSG="true",
        PGROUP=group,
        UNIQ_KEY=unique_id(1),
    )


def park(mq: RunningBroker, *, group: str = "buyers") -> None:
    """Let a producer of the group ignore every check, until the broker gives up."""
    with RawClient(mq.broker) as client:
        beat = heartbeat_of(client="silent", producers=(group,))
        for _ in range(20):  # more than the maximum number of checks
            assert client.ask(RequestCode.HEART_BEAT, body=beat).code == 0
            mq.clock.advance(minutes=1)


def commit(mq: RunningBroker, group: str, topic: str, *, queue_id: int = 0, offset: int) -> None:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    with RawClient(mq.broker) as client:
        assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def give_up(mq: RunningBroker, group: str, topic: str) -> None:
    """Send every message of the topic back until it is a dead letter of the group."""
    with RawClient(mq.broker) as client:
        for message in mq.stored(topic):
            back = {
                "offset": str(message.physical_offset),
                "group": group,
                "delayLevel": "-1",
                "originMsgId": message.offset_id,
                "originTopic": topic,
            }
            assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0


@contextmanager
def member(mq: RunningBroker, group: str, topic: str, client_id: str) -> Generator[RawClient]:
    """Connect a consumer that sends a heartbeat."""
    with RawClient(mq.broker) as client:
        beat = heartbeat_of(client=client_id, consumers=(group,), topic=topic)
        assert client.ask(RequestCode.HEART_BEAT, body=beat).code == 0
        yield client
