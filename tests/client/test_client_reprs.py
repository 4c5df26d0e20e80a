"""How clients and results show themselves in a debugger or a log."""

import asyncio

from consuming import asynchronous

from tianzhou.client import Admin, LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from tianzhou.client import sync as blocking
from tianzhou.testing import RunningBroker


@asynchronous
async def test_repr_of_a_producer_and_its_results_has_their_state(mq: RunningBroker) -> None:
    await asyncio.to_thread(mq.create_topic, "orders", queues=1)
    producer = Producer("shop", nameserver=mq.nameserver)
    about = f"<Producer group='shop' nameserver={mq.nameserver!r}"
    assert repr(producer) == f"{about} not started>"
    async with producer:
        assert repr(producer) == f"{about} running>"
        result = await producer.send(Message("orders", b"x"))
    assert repr(producer) == f"{about} closed>"
    assert repr(result) == (
        f"SendResult(SEND_OK, message_id={result.message_id!r}, queue='orders@broker-a:0', "
        "queue_offset=0)"
    )


@asynchronous
async def test_repr_of_consumers_has_their_state(mq: RunningBroker) -> None:
    await asyncio.to_thread(mq.create_topic, "orders", queues=1)
    push = PushConsumer("billing", nameserver=mq.nameserver, subscribe={"orders": "*"})
    lite = LitePullConsumer("audit", nameserver=mq.nameserver, subscribe={"orders": "*"})
    pull = PullConsumer("tools", nameserver=mq.nameserver)
    where = f"nameserver={mq.nameserver!r}"
    about_push = f"<PushConsumer group='billing' topics=['orders'] {where}"
    about_lite = f"<LitePullConsumer group='audit' topics=['orders'] {where}"
    assert repr(push) == f"{about_push} not started>"
    assert repr(lite) == f"{about_lite} not started>"
    assert repr(pull) == f"<PullConsumer group='tools' {where} not running>"
    async with push, lite, pull:
        assert repr(push) == f"{about_push} running>"
        assert repr(lite) == f"{about_lite} running>"
        assert repr(pull) == f"<PullConsumer group='tools' {where} running>"
    assert repr(push) == f"{about_push} stopped>"
    assert repr(lite) == f"{about_lite} stopped>"


@asynchronous
async def test_repr_of_a_failed_consumer_shows_it(mq: RunningBroker) -> None:
    push = PushConsumer("billing", nameserver=mq.nameserver, subscribe={"orders": "*"})
    await push.start()
    push.fail(RuntimeError("the end"))
    assert repr(push).endswith(" failed>")
    await push._end()


def test_repr_of_blocking_clients_equals_the_asyncio_ones(mq: RunningBroker) -> None:
    with blocking.Producer("shop", nameserver=mq.nameserver) as producer:
        assert repr(producer) == f"<Producer group='shop' nameserver={mq.nameserver!r} running>"
    with blocking.Admin(nameserver=mq.nameserver) as admin:
        assert repr(admin) == f"<Admin nameserver={mq.nameserver!r} running>"
    assert repr(Admin(nameserver="a:1")) == "<Admin nameserver='a:1' not running>"
    for consumer in (
        blocking.PushConsumer("billing", subscribe={"orders": "*"}),
        blocking.LitePullConsumer("billing", subscribe={"orders": "*"}),
        blocking.PullConsumer("billing"),
    ):
        assert repr(consumer).startswith(f"<{type(consumer).__name__} group='billing'")
