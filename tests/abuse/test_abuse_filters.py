"""Filters that are too long, too deep, too expensive or invalid."""

import pytest
from live import Live
from raw_client import UNIQUE, pull_of, send_v2

from tianzhou.broker.fetch.pull import COUNT_MAX, FILTER_S_MAX
from tianzhou.record.message import decode_all

PARSE_FAILED = 23
HOSTILE = {
    "long": "a = '" + 4_096 * "x" + "'",
    "tokens": " OR ".join(200 * ["a > 1"]),
    "deep": 33 * "(" + "a > 1" + 33 * ")",
    "very-deep": 1_900 * "(" + "a > 1" + 1_900 * ")",
    "nots": 1_000 * "NOT " + "a > 1",
    "minus": "a > " + 1_000 * "-" + "1",
    "in": "a IN (" + ",".join(257 * ["'x'"]) + ")",
    "million": " OR ".join(20_000 * ["a>1"]),
    "half": "a >",
    "nothing-but-not": "NOT",
    "quote": "a = 'x",
    "nul": "a > 1 \x00",
}


def sql(text: str, topic: str = "Filtered", **more: str) -> dict[str, str]:
    return pull_of(topic, expressionType="SQL92", subscription=text) | more


@pytest.mark.parametrize("name", HOSTILE)
def test_s20_expression_beyond_the_limits_is_rejected(live: Live, name: str) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Filtered"), b"x")
        response = client.ask(11, sql(HOSTILE[name]))
        assert response.code == PARSE_FAILED, response
        assert response.remark


def test_s20_subscription_with_too_many_tags_is_rejected(live: Live) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Filtered"), b"x")
        tags = "||".join(f"tag{number}" for number in range(10_000))
        assert client.ask(11, pull_of("Filtered", subscription=tags)).code == PARSE_FAILED


def test_s21_expensive_filter_returns_partial_results(live: Live) -> None:
    """The response has the offset to continue from, so that the next pull gets the rest."""
    costly = " OR ".join(f"p{number} > 900" for number in range(120)) + " OR hit = 'yes'"
    names = "".join(f"p{number}\x01{number:020}\x02" for number in range(120))
    count = 400  # one response has room for all; filtering all takes about 50 ms
    with live.to_broker() as client:
        for _ in range(count):
            client.send_message("Costly", UNIQUE + names + "hit\x01yes\x02")
        found: list[int] = []
        offset, pulls = 0, 0
        while len(found) < count:
            response = client.ask(
                11,
                sql(costly, "Costly", maxMsgNums=str(COUNT_MAX), maxMsgBytes=str(4 * 2**20))
                | {"queueOffset": str(offset), "sysFlag": "6"},
            )
            assert response.code in (0, 20), response
            found += [message.queue_offset for message in decode_all(response.body)]
            next_offset = int(response.header.ext["nextBeginOffset"])
            assert next_offset > offset
            offset, pulls = next_offset, pulls + 1
    assert found == list(range(count))
    assert pulls > 1, "no pull reached the limit"
    assert FILTER_S_MAX == 0.02


EXPRESSIONS = (
    "a > 1",
    "a = 'x'",
    "missing > 1",
    "missing IS NULL",
    "a BETWEEN 1 AND 2",
    "b = TRUE",
    "a IN ('1', 'x')",
    "NOT (a > 1)",
    "a > 9223372036854775807",
    "a < -1.7976931348623157E308",
    "b > 1 AND a IS NOT NULL",
    "a <> b",
    "a + 'x' > 1",
)
VALUES = ("", "x", "1", "nan", "1e999", "-", "9" * 500, "0x10", "٣", "true", "1_0", " 1", "é\ud83d")


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_s22_filter_accepts_odd_property_values(live: Live, text: str) -> None:
    with live.to_broker() as client:
        for value in VALUES:
            shown = value.encode("utf-8", "replace").decode()
            ext = send_v2("Odd", properties=f"{UNIQUE}a\x01{shown}\x02b\x01{shown}\x02")
            assert client.ask(310, ext, b"x").code == 0
        response = client.ask(11, sql(text, "Odd"))
        assert response.code in (0, 20, PARSE_FAILED), response
