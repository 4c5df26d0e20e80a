"""The programs of docs/idempotence.md: killed in the middle, their effects still happen once."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from clients.waiting import wait_until
from docs.pages import NAMESERVER, Page
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.testing import RunningBroker

UNIQUE_TABLE, LOCK = Page("docs/idempotence.md").blocks("python")
ORDERS = 300
PAYMENT = 'return f"paid {key}: {body.decode()}"'
LEASE = "LEASE_S = 30.0"

# A payment service: every call is a line of a file; the first call of order 7 does not return.
SERVICE = """
    import os

    calls = os.open("calls.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(calls, key.encode() + b"\\n")
    os.close(calls)
    if key == "order-7" and not os.path.exists("hung"):
        open("hung", "w").close()
        time.sleep(600)
    return "paid"
"""


def send_orders(mq: RunningBroker, count: int) -> Counter[str]:
    """Send every order twice, as a program does that did not get the response; return the sums."""
    sums: Counter[str] = Counter()
    with Producer("shop", nameserver=mq.nameserver) as producer:
        for number in range(count):
            item = f"item-{number % 7}"
            body = json.dumps({"item": item, "count": number}).encode()
            sums[item] += number
            for _ in range(2):
                producer.send(Message("orders", body, keys=f"order-{number}"))
    return sums


@contextlib.contextmanager
def running(code: str, mq: RunningBroker, directory: Path) -> Generator[subprocess.Popen[bytes]]:
    """Run a program of the page; kill it at the end of the block."""
    # A file of its own: another process may be about to read an earlier one.
    program = directory / f"program-{len(list(directory.glob('program-*')))}.py"
    program.write_text(code.replace(NAMESERVER, mq.nameserver), encoding="utf-8")
    with (directory / "errors.txt").open("ab") as errors:
        process = subprocess.Popen([sys.executable, program], cwd=directory, stderr=errors)
    try:
        yield process
        assert process.poll() is None, (directory / "errors.txt").read_text()
    finally:
        process.kill()
        process.wait()


def rows_in(database: Path, query: str) -> list[tuple[object, ...]]:
    if not database.exists():
        return []
    with contextlib.closing(sqlite3.connect(database, timeout=30.0)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # the program has not created its tables yet
            return []


@pytest.mark.slow
def test_unique_table_counts_each_order_once_across_kills(
    mq: RunningBroker, tmp_path: Path
) -> None:
    mq.create_topic("orders")
    sums = send_orders(mq, ORDERS)
    database = tmp_path / "stock.db"

    def handled() -> int:
        return len(rows_in(database, "SELECT key FROM handled"))

    for end in (ORDERS // 3, 2 * ORDERS // 3):
        with running(UNIQUE_TABLE, mq, tmp_path):
            wait_until(lambda end=end: handled() >= end, within_s=60, what="some", progress=handled)
    with running(UNIQUE_TABLE, mq, tmp_path):
        wait_until(
            lambda: handled() == ORDERS and mq.lag("stock-service", "orders") == 0,
            within_s=60,
            what="all orders",
            progress=handled,
        )
    assert sorted(rows_in(database, "SELECT item, count FROM stock")) == sorted(sums.items())


@pytest.mark.slow
def test_lock_repeats_only_the_payment_that_was_interrupted(
    mq: RunningBroker, tmp_path: Path
) -> None:
    """Two consumers share the work; one is killed in the middle of a payment."""
    assert LOCK.count(PAYMENT) == LOCK.count(LEASE) == 1
    code = LOCK.replace(PAYMENT, SERVICE.strip()).replace(LEASE, "LEASE_S = 5.0")
    mq.create_topic("orders")
    send_orders(mq, 40)
    calls, database = tmp_path / "calls.txt", tmp_path / "payments.db"

    def paid() -> int:
        return len(rows_in(database, "SELECT key FROM payments WHERE result = 'paid'"))

    with running(code, mq, tmp_path):
        wait_until((tmp_path / "hung").exists, within_s=60, what="a payment hangs", progress=paid)
    before = paid()
    assert before < 40

    def is_done() -> bool:
        mq.clock.advance(seconds=10)  # what was rejected because of the lock is delivered again
        return paid() == 40 and mq.lag("pay-service", "orders") == 0

    with running(code, mq, tmp_path), running(code, mq, tmp_path):
        wait_until(is_done, within_s=60, what="all payments", progress=paid)
    expected = Counter({f"order-{number}": 1 for number in range(40)})
    expected["order-7"] = 2
    assert Counter(calls.read_text().split()) == expected
    assert mq.dead_letters("pay-service") == []
