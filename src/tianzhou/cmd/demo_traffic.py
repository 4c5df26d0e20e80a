"""The input of the demo and its expected results. The same seed gives the same traffic.

Every state of an order is a message in the topic `orders`, whose sharding key is the order.
Payments go to the topic `payments`; the tag is the city. Their event times are up to a minute and a
half out of order, which is allowed; a few are half an hour late, which is not.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from tianzhou.record.message import Message

ORDERS, PAYMENTS = "orders", "payments"
CITIES: Final = ("北京", "上海", "广州", "深圳", "成都", "长春")
_SHARES: Final = (9, 8, 6, 5, 3, 2)
STATES: Final = ("unpaid", "paid", "delivering", "delivered")
FAILED: Final = "failed"

ORDER_COUNT: Final = 3_000
PAYMENT_COUNT: Final = 6_000
SPAN_S: Final = 600
"""The period of the event times."""
DISORDER_S: Final = 90.0
LATE_COUNT, LATE_S = 24, 1_800.0
BROKEN: Final = (
    b"not JSON at all",
    b'{"amount": "many", "paidAt": "2026-11-16T08:00:00Z"}',
    b'{"amount": 7}',
    b"\xff\xfe\x00",
)
WINDOW_S: Final = 60
CLOSING_CITY: Final = "closing"

Sums = dict[tuple[int, str], tuple[int, Decimal]]
"""Start of a minute and city, to the number of payments and their sum."""


@dataclass(slots=True)
class Traffic:
    """The generated messages and their expected sums."""

    base_s: int
    seed: int
    payments: Sums = field(default_factory=Sums)
    sent: Counter[str] = field(default_factory=Counter[str])
    """By topic, as they are sent."""

    def orders(self, first: int, count: int) -> Iterator[Message]:
        """All states of these orders, state by state, so that orders interleave."""
        dice = random.Random(self.seed + first)
        numbers = [f"T{number:07d}" for number in range(first, first + count)]
        for state in STATES:
            dice.shuffle(numbers)
            for number in numbers:
                is_failed = state == STATES[-1] and int(number[1:]) % 50 == 0
                yield self._order(number, FAILED if is_failed else state)

    def _order(self, number: str, state: str) -> Message:
        self.sent[ORDERS] += 1
        body = json.dumps({"orderId": number, "state": state}).encode()
        return Message(ORDERS, body, tags=state, keys=number, sharding_key=number)

    def in_time(self, first: int, count: int) -> Iterator[Message]:
        dice = random.Random(self.seed * 31 + first)
        for number in range(first, first + count):
            at = self.base_s + number * SPAN_S / PAYMENT_COUNT - dice.uniform(0, DISORDER_S)
            amount = Decimal(dice.randrange(100, 100_000)) / 100
            (city,) = dice.choices(CITIES, _SHARES)
            minute = int(at // WINDOW_S * WINDOW_S)
            known, total = self.payments.get((minute, city), (0, Decimal(0)))
            self.payments[minute, city] = (known + 1, total + amount)
            yield self._payment(number, city, at, amount)

    def late(self) -> Iterator[Message]:
        for number in range(LATE_COUNT):
            at = self.base_s - LATE_S + number
            yield self._payment(900_000 + number, CITIES[0], at, Decimal("1000000.00"))

    def broken(self) -> Iterator[Message]:
        for body in BROKEN:
            self.sent[PAYMENTS] += 1
            yield Message(PAYMENTS, body, tags=CITIES[0])

    def closing(self) -> Message:
        """An event so far ahead that every window before it can be closed, but not as far as the
        `maxFuture` of a watermark."""
        return self._payment(999_999, CLOSING_CITY, self.base_s + SPAN_S + 600, Decimal("0.01"))

    def _payment(self, number: int, city: str, at_s: float, amount: Decimal) -> Message:
        self.sent[PAYMENTS] += 1
        when = datetime.fromtimestamp(round(at_s, 3), UTC).isoformat(timespec="milliseconds")
        # Amounts are text in JSON, because a number would become a float.
        body = {"orderId": f"T{number:07d}", "amount": str(amount), "paidAt": when}
        return Message(PAYMENTS, json.dumps(body).encode(), tags=city, keys=body["orderId"])
