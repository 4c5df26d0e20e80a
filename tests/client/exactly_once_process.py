"""A consumer that writes its results and its offsets to SQLite in one transaction, and kills itself
after a commit, before the consumer knows that the message is done.

    python exactly_once_process.py NAMESERVER DATABASE KILL_AFTER store|broker

With `broker` it leaves the offsets to the brokers: messages are then processed twice.
"""

import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing

from tianzhou.client.sync import (
    ConsumerOptions,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
)

SCHEMA = """
    CREATE TABLE IF NOT EXISTS results (body TEXT);
    CREATE TABLE IF NOT EXISTS offsets (
        consumers TEXT, topic TEXT, broker TEXT, queue INTEGER, next INTEGER,
        PRIMARY KEY (consumers, topic, broker, queue)
    );
"""


class SqliteOffsets:
    """Offsets in the database of the results."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as database:
            database.executescript(SCHEMA)

    def load(self, group: str, queue: MessageQueue) -> int | None:
        with closing(sqlite3.connect(self.path)) as database:
            row = database.execute(
                "SELECT next FROM offsets WHERE (consumers, topic, broker, queue) = (?, ?, ?, ?)",
                (group, queue.topic, queue.broker_name, queue.queue_id),
            ).fetchone()
        return None if row is None else row[0]

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Nothing: each result is stored with its offset."""

    def put(self, group: str, message: ReceivedMessage) -> None:
        """Store a result and the offset after it: both, or neither."""
        queue = message.queue
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("INSERT INTO results VALUES (?)", (message.body.decode(),))
            database.execute(
                "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?)",
                (group, queue.topic, queue.broker_name, queue.queue_id, message.queue_offset + 1),
            )

    def results(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as database:
            return sorted(int(body) for (body,) in database.execute("SELECT body FROM results"))


def main(nameserver: str, path: str, kill_after: int, keeper: str) -> None:
    store = SqliteOffsets(path)
    consumer = PushConsumer(
        "ledger",
        nameserver=nameserver,
        subscribe={"orders": "*"},
        options=ConsumerOptions(
            orderly=True,
            start_from=StartPosition.FIRST,
            offset_store=store if keeper == "store" else None,
        ),
    )
    count = 0

    @consumer.listen
    def book(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        nonlocal count
        store.put("ledger", message)
        count += 1
        if count == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    with consumer:
        consumer.closed()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
