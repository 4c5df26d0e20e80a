"""Check that the messages of every order arrive in the order of its states; report violations.

An order is unpaid, then paid, then in delivery, then delivered or its delivery failed. The last
state of each order is kept in Spark's state store.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

UNPAID, PAID, DELIVERING, DELIVERED, FAILED = "未支付", "已支付", "发货中", "发货成功", "发货失败"

NEXT: Final[dict[str, frozenset[str]]] = {
    "": frozenset({UNPAID}),
    UNPAID: frozenset({PAID}),
    PAID: frozenset({DELIVERING}),
    DELIVERING: frozenset({DELIVERED, FAILED}),
    DELIVERED: frozenset(),
    FAILED: frozenset({DELIVERING}),
}
"""State to the states that may follow. The empty state is that of an unknown order."""

ENGLISH: Final = {
    "UNPAID": UNPAID,
    "PAID": PAID,
    "DELIVERING": DELIVERING,
    "DELIVERED": DELIVERED,
    "FAILED": FAILED,
}

VIOLATION: Final = (
    "orderId string, before string, state string, expected string, topic string,"
    " brokerName string, queueId int, queueOffset bigint, beforeQueueId int,"
    " beforeQueueOffset bigint, storeTimestamp timestamp"
)
_STATE: Final = "state string, queueId int, queueOffset bigint"


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message of an order."""

    state: str = ""
    queue_id: int = -1
    queue_offset: int = -1


def expected_after(state: str) -> frozenset[str]:
    return NEXT.get(state, frozenset())


def known_as(state: str) -> str:
    return ENGLISH.get(state.upper(), state)


def is_violation(before: LastMessage, state: str) -> bool:
    """Return whether a state may not follow. A repeated message is not a violation."""
    known = known_as(state)
    return known != before.state and known not in expected_after(before.state)


class OrderCheck(StatefulProcessor):
    """Finds violations with the last state of each order. Owner: Spark, one per task."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last: Any = handle.getValueState("last", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        last = LastMessage(*self._last.get()) if self._last.exists() else LastMessage()
        # Within a queue this is the order of arrival; across queues only the clock decides.
        for row in sorted(rows, key=lambda row: (row.storeTimestamp, row.queueId, row.queueOffset)):
            if is_violation(last, row.state):
                yield _violation(key[0], last, row)
            last = LastMessage(known_as(row.state), row.queueId, row.queueOffset)
        self._last.update((last.state, last.queue_id, last.queue_offset))

    def close(self) -> None:
        pass


def _violation(order: str, before: LastMessage, row: Any) -> Row:
    return Row(
        orderId=order,
        before=before.state,
        state=row.state,
        expected=" or ".join(sorted(expected_after(before.state))) or "nothing",
        topic=row.topic,
        brokerName=row.brokerName,
        queueId=row.queueId,
        queueOffset=row.queueOffset,
        beforeQueueId=before.queue_id,
        beforeQueueOffset=before.queue_offset,
        storeTimestamp=row.storeTimestamp,
    )


def violations(messages: DataFrame) -> DataFrame:
    """Return the violations in messages that have `body.orderId` and `body.state`."""
    rows = messages.select(
        F.col("body.orderId").alias("orderId"),
        F.col("body.state").alias("state"),
        "topic",
        "brokerName",
        "queueId",
        "queueOffset",
        "storeTimestamp",
    )
    return rows.groupBy("orderId").transformWithState(
        OrderCheck(), outputStructType=VIOLATION, outputMode="Append", timeMode="None"
    )
