"""Transactions: seen after a commit, never after a rollback, and decided by a check if need be."""

import asyncio

import pytest
from loops import Run

from tianzhou.client import Message, MessageView, Producer, TransactionState
from tianzhou.client.errors import SendFailed, TransactionUndecided, UsageError
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode


class WorkFailed(Exception):
    pass


def test_transaction_commits_on_a_clean_exit(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            async with producer.transaction(Message("paid", b"x", keys="T1")) as transaction:
                assert transaction.half.message_id
                assert not mq.stored("paid")
            assert transaction.state is TransactionState.COMMIT
            (seen,) = mq.stored("paid")
            assert (seen.body, seen.keys) == (b"x", ("T1",))
            assert seen.unique_id == transaction.half.message_id

    run(body)


def test_transaction_rolls_back_and_reraises_an_exception(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            transaction = producer.transaction(Message("paid", b"x"))
            with pytest.raises(WorkFailed):
                async with transaction:
                    raise WorkFailed
            assert transaction.state is TransactionState.ROLLBACK
            mq.clock.advance(hours=1)  # nor does a check bring it to light
            assert not mq.stored("paid")

    run(body)


def test_transaction_rolls_back_when_its_task_is_cancelled(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            transaction = producer.transaction(Message("paid", b"x"))
            begun = asyncio.Event()

            async def work() -> None:
                async with transaction:
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transaction.state is TransactionState.ROLLBACK
            assert not mq.stored("paid")

    run(body)


def test_transaction_can_be_decided_explicitly_once(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            async with producer.transaction(Message("paid", b"yes")) as transaction:
                await transaction.commit()
                assert len(mq.stored("paid")) == 1
                with pytest.raises(UsageError, match="before: COMMIT"):
                    await transaction.rollback()
            async with producer.transaction(Message("paid", b"no")) as transaction:
                await transaction.rollback()
            with pytest.raises(UsageError, match="once"):
                async with transaction:
                    pass
            assert [m.body for m in mq.stored("paid")] == [b"yes"]

    run(body)


@pytest.mark.parametrize("is_async", [False, True])
def test_transaction_check_decides_an_open_transaction(
    mq: RunningBroker, run: Run, is_async: bool
) -> None:
    states = {
        b"yes": [TransactionState.COMMIT],
        b"no": [TransactionState.ROLLBACK],
        b"later": [TransactionState.UNKNOWN, TransactionState.COMMIT],
    }

    async def body() -> None:
        left = {key: list(found) for key, found in states.items()}
        asked: list[bytes] = []

        def check(message: MessageView) -> TransactionState:
            asked.append(message.body)
            return left[message.body].pop(0)

        async def check_async(message: MessageView) -> TransactionState:
            await asyncio.sleep(0)
            return check(message)

        async with Producer(
            "makers", nameserver=mq.nameserver, check=check_async if is_async else check
        ) as producer:
            for what in states:
                async with producer.transaction(Message("paid", what)) as transaction:
                    transaction.leave_undecided()
            assert not mq.stored("paid")
            mq.clock.advance(minutes=2)
            await mq.until(lambda: len(asked) == 3)
            await mq.until(lambda: [m.body for m in mq.stored("paid")] == [b"yes"])
            mq.clock.advance(minutes=2)
            await mq.until(lambda: len(mq.stored("paid")) == 2)
        assert asked == [b"yes", b"no", b"later", b"later"]

    run(body)


def test_transaction_check_that_fails_is_repeated(
    mq: RunningBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        asked: list[str] = []

        def check(message: MessageView) -> TransactionState:
            asked.append(message.message_id)
            if len(asked) == 1:
                raise WorkFailed("no database")
            return TransactionState.COMMIT

        async with Producer("makers", nameserver=mq.nameserver, check=check) as producer:
            async with producer.transaction(Message("paid", b"x")) as transaction:
                transaction.leave_undecided()
            for count in (1, 2):
                mq.clock.advance(minutes=2)
                await mq.until(lambda count=count: len(asked) == count)
            await mq.until(lambda: len(mq.stored("paid")) == 1)

    run(body)
    assert "no database" in caplog.text


def test_transaction_commit_that_is_lost_is_an_error_without_a_check(
    mq: RunningBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """With a check, the broker asks the producer later, so a lost commit is not an error."""

    async def body() -> None:
        with mq.faults.refuse([RequestCode.END_TRANSACTION]) as refused:
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                with pytest.raises(TransactionUndecided, match="COMMIT of message"):
                    async with producer.transaction(Message("paid", b"x")):
                        pass
            assert refused.hits == 3
            checked = Producer(
                "others", nameserver=mq.nameserver, check=lambda _: TransactionState.COMMIT
            )
            async with checked:
                async with checked.transaction(Message("paid", b"y")):
                    pass
                refused.end()
                mq.clock.advance(minutes=2)
                await mq.until(lambda: [m.body for m in mq.stored("paid")] == [b"y"])

    run(body)
    assert "was not confirmed by broker broker-a: " in caplog.text


def test_transaction_rollback_that_is_lost_hides_no_error(
    mq: RunningBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        with mq.faults.refuse([RequestCode.END_TRANSACTION]):
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                with pytest.raises(WorkFailed):
                    async with producer.transaction(Message("paid", b"x")):
                        raise WorkFailed
                with pytest.raises(TransactionUndecided, match="ROLLBACK of message"):
                    async with producer.transaction(Message("paid", b"x")) as transaction:
                        await transaction.rollback()
        assert not mq.stored("paid")

    run(body)
    assert "was not confirmed by broker broker-a: " in caplog.text


def test_transaction_whose_half_is_not_stored_does_not_start(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            entered = False
            with mq.faults.refuse_sends(), pytest.raises(SendFailed):
                async with producer.transaction(Message("paid", b"x")):
                    entered = True
            assert not entered
            with pytest.raises(UsageError, match="delayed"):
                producer.transaction(Message("paid", b"x", delay_level=1))
            async with producer.transaction(Message("paid", b"x")) as transaction:
                with pytest.raises(UsageError, match="no check callback"):
                    transaction.leave_undecided()

    run(body)
