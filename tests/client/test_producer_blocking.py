"""The blocking producer: the same names, from any thread."""

import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tianzhou.client import Batching, MessageView, ProducerOptions, TransactionState
from tianzhou.client.aio import producer as asynchronous
from tianzhou.client.aio.transactions import Transaction as AsyncTransaction
from tianzhou.client.errors import ClientClosed, RequestTimeout, SendTimeout, UsageError
from tianzhou.client.sync import Message, Producer, Transaction
from tianzhou.testing import RunningBroker


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("blocking", "original"),
    [(Producer, asynchronous.Producer), (Transaction, AsyncTransaction)],
)
def test_blocking_clients_have_the_methods_of_the_asyncio_ones(
    blocking: type, original: type
) -> None:
    # What the asynchronous ones keep as attributes are properties here.
    assert public(original) <= public(blocking)
    for name in public(original):
        ours, theirs = getattr(blocking, name), getattr(original, name)
        if inspect.isfunction(ours):
            assert list(inspect.signature(ours).parameters) == list(
                inspect.signature(theirs).parameters
            ), name


def test_blocking_producer_sends_in_every_mode(mq: RunningBroker) -> None:
    with Producer("makers", nameserver=mq.nameserver) as producer:
        one = producer.send(Message("blocking", b"one", keys="k"))
        assert one.queue in producer.queues("blocking")
        future = producer.send_async(Message("blocking", b"two"))
        assert future.result(120).message_id
        producer.send_oneway(Message("blocking", b"three"))
        assert len(producer.send_batch([Message("blocking", b"4"), Message("blocking", b"5")])) == 2
        timed = producer.send(Message("blocking", b"never", delay=timedelta(hours=1)))
        assert timed.recall_handle is not None
        assert producer.recall("blocking", timed.recall_handle) == timed.message_id
        with pytest.raises(RequestTimeout):
            producer.request(Message("asked", b"?"), timeout_s=0.05)
        mq.wait_until(lambda: len(mq.stored("blocking")) == 5)
    with pytest.raises(ClientClosed):
        producer.send(Message("blocking", b"x"))


def test_blocking_producer_runs_transactions_and_checks(mq: RunningBroker) -> None:
    threads: set[str] = set()

    def check(message: MessageView) -> TransactionState:
        threads.add(threading.current_thread().name)
        return TransactionState.COMMIT

    with Producer("makers", nameserver=mq.nameserver, check=check) as producer:
        with producer.transaction(Message("paid", b"yes")) as transaction:
            assert not mq.stored("paid")
        assert transaction.state is TransactionState.COMMIT
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("paid", b"no")):
            raise ZeroDivisionError
        with producer.transaction(Message("paid", b"checked")) as transaction:
            transaction.leave_undecided()
        mq.clock.advance(minutes=2)
        mq.wait_until(lambda: len(mq.stored("paid")) == 2)
    assert {m.body for m in mq.stored("paid")} == {b"yes", b"checked"}
    assert threads
    assert "tianzhou-client" not in threads  # which would hold up all other clients


def test_blocking_producer_threads_share_one_connection(mq: RunningBroker) -> None:
    with Producer("makers", nameserver=mq.nameserver) as producer, ThreadPoolExecutor(16) as pool:
        messages = [Message("threads", b"%d" % n) for n in range(400)]
        results = list(pool.map(producer.send, messages))
        assert mq.faults.cut_connections(producer.client_id) == 1
    by_id = {message.unique_id: message.body for message in mq.stored("threads")}
    assert [by_id[result.message_id] for result in results] == [b"%d" % n for n in range(400)]


def test_blocking_producer_futures_are_batched_and_limited(mq: RunningBroker) -> None:
    options = ProducerOptions(batching=Batching(linger_s=0.005), in_flight_count_max=50)
    with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
        futures = [producer.send_async(Message("futures", b"%d" % n)) for n in range(500)]
        producer.flush()
        assert len({future.result(120).message_id for future in futures}) == 500
    assert len(mq.stored("futures")) == 500


def test_blocking_producer_raises_errors_to_the_caller(mq: RunningBroker) -> None:
    options = ProducerOptions(send_timeout_s=0.2, try_timeout_s=0.1)
    with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
        producer.send(Message("slow", b"x"))
        with mq.faults.slow(seconds=5):
            with pytest.raises(SendTimeout, match=mq.broker):
                producer.send(Message("slow", b"x"))
            future = producer.send_async(Message("slow", b"x"))
            assert isinstance(future.exception(10), SendTimeout)


def test_blocking_producer_used_in_its_loop_raises(mq: RunningBroker) -> None:
    with Producer("makers", nameserver=mq.nameserver) as producer:
        with pytest.raises(UsageError, match="wait for itself"):
            producer.send(
                Message("loop", b"x"),
                select=lambda queues, _: producer.send(Message("loop", b"y")).queue,
            )
        assert producer.send(Message("loop", b"z")).queue_offset == 0


CHILD = """
import os, sys
from tianzhou.base.errors import UsageError
from tianzhou.client.sync import Message, Producer

nameserver = sys.argv[1]
inherited = Producer("parent", nameserver=nameserver).start()
inherited.send(Message("forked", b"parent"))
child = os.fork()
if child == 0:
    try:
        inherited.send(Message("forked", b"never"))
    except UsageError as error:
        assert "before a fork" in str(error)
    else:
        raise AssertionError("a loop that is not there has done something")
else:
    inherited.close()
with Producer("child", nameserver=nameserver) as producer:
    producer.send(Message("forked", b"child" if child == 0 else b"parent again"))
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_blocking_producer_in_a_forked_process_has_its_own_loop(mq: RunningBroker) -> None:
    done = subprocess.run(
        # Python itself warns of forks of processes that have threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CHILD, mq.nameserver],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(m.body for m in mq.stored("forked")) == [b"child", b"parent", b"parent again"]
