"""Filters that are too long, too deep, too costly or make no sense."""

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
def test_s20_expressions_beyond_the_limits(live: Live, name: str) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Filtered"), b"x")
        answer = client.ask(11, sql(HOSTILE[name]))
        assert answer.code == PARSE_FAILED, answer
        assert answer.remark


def test_s20_subscriptions_by_tag_have_a_limit_too(live: Live) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Filtered"), b"x")
        tags = "||".join(f"tag{number}" for number in range(10_000))
        assert client.ask(11, pull_of("Filtered", subscription=tags)).code == PARSE_FAILED


def test_s21_a_costly_filter_gives_what_there_is(live: Live) -> None:
    """And says where to go on, so that the next pull sees the rest."""
    costly = " OR ".join(f"p{number} > 900" for number in range(120)) + " OR hit = 'yes'"
    names = "".join(f"p{number}\x01{number:020}\x02" for number in range(120))
    count = 400  # one answer has room for all of them, and 50 ms of numbers to read
    with live.to_broker() as client:
        for _ in range(count):
            client.send_message("Costly", UNIQUE + names + "hit\x01yes\x02")
        found: list[int] = []
        offset, pulls = 0, 0
        while len(found) < count:
            answer = client.ask(
                11, sql(costly, "Costly", maxMsgNums=str(COUNT_MAX), maxMsgBytes=str(4 * 2**20))
                | {"queueOffset": str(offset), "sysFlag": "6"},
            )  # fmt: skip
            assert answer.code in (0, 20), answer
            found += [message.queue_offset for message in decode_all(answer.body)]
            next_offset = int(answer.header.ext["nextBeginOffset"])
            assert next_offset > offset
            offset, pulls = next_offset, pulls + 1
    assert found == list(range(count))
    assert pulls > 1, "no pull ran into its limit"
    assert FILTER_S_MAX == 0.02


ODD = (
    "a > 1", "a = 'x'", "missing > 1", "missing IS NULL", "a BETWEEN 1 AND 2", "b = TRUE",
    "a IN ('1', 'x')", "NOT (a > 1)", "a > 9223372036854775807", "a < -1.7976931348623157E308",
    "b > 1 AND a IS NOT NULL", "a <> b", "a + 'x' > 1",
)  # fmt: skip
VALUES = ("", "x", "1", "nan", "1e999", "-", "9" * 500, "0x10", "٣", "true", "1_0", " 1", "é\ud83d")


@pytest.mark.parametrize("text", ODD)
def test_s22_odd_values_in_a_filter_are_no_error(live: Live, text: str) -> None:
    with live.to_broker() as client:
        for value in VALUES:
            shown = value.encode("utf-8", "replace").decode()
            ext = send_v2("Odd", properties=f"{UNIQUE}a\x01{shown}\x02b\x01{shown}\x02")
            assert client.ask(310, ext, b"x").code == 0
        answer = client.ask(11, sql(text, "Odd"))
        assert answer.code in (0, 20, PARSE_FAILED), answer
