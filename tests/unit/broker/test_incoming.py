"""Where a message really goes, and what it remembers of where it is meant to go."""

import pytest

from tianzhou.broker import names
from tianzhou.broker.writing import incoming
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.record import flags, properties
from tianzhou.wire.names import SCHEDULE_TOPIC

PLAIN = Incoming("orders", 3, b"body", b"UNIQ_KEY\x01U1\x02TAGS\x01a\x02", sys_flag=1)


def named(message: Incoming) -> dict[str, str]:
    return properties.decode(message.properties)


def test_delayed_message_stores_its_real_topic_and_queue() -> None:
    sent = incoming.delayed(PLAIN, 5, 18)
    assert (sent.topic, sent.queue_id) == (SCHEDULE_TOPIC, 4)
    assert named(sent)["REAL_TOPIC"] == "orders"
    assert named(sent)["REAL_QID"] == "3"
    assert named(sent)["TAGS"] == "a"
    assert incoming.delayed(PLAIN, 99, 18).queue_id == 17


def test_forged_real_topic_and_queue_are_overwritten() -> None:
    forged = PLAIN.with_properties({b"REAL_TOPIC": b"%DLQ%x", b"REAL_QID": b"9"})
    for sent in (
        incoming.delayed(forged, 1, 18),
        incoming.timed(forged, 1_000_500),
        incoming.half(forged),
    ):
        assert sent.properties.count(b"REAL_TOPIC\x01") == 1
        assert named(sent)["REAL_TOPIC"] == "orders"
        assert named(sent)["REAL_QID"] == "3"


@pytest.mark.parametrize(("deliver_ms", "out_ms"), [(5_400, 5_000), (5_000, 4_000), (5_999, 5_000)])
def test_timed_message_rounds_its_time_down_like_java(deliver_ms: int, out_ms: int) -> None:
    sent = incoming.timed(PLAIN, deliver_ms)
    assert (sent.topic, sent.queue_id) == (names.TIMER_TOPIC, 0)
    assert named(sent)["TIMER_OUT_MS"] == str(out_ms)
    assert named(sent)["TIMER_DELIVER_MS"] == str(deliver_ms)


def test_half_message_clears_the_transaction_bits_of_its_flag() -> None:
    sent = incoming.half(PLAIN._replace(sys_flag=1 | flags.TRANSACTION_PREPARED))
    assert (sent.topic, sent.queue_id, sent.sys_flag) == (names.HALF_TOPIC, 0, 1)
    assert named(sent)["__transactionId__"] == "U1"


@pytest.mark.parametrize(
    ("text", "level"), [(b"3", 3), (b"", 0), (b"-1", 0), (b"x", 0), (b"9" * 19, 0), (b"007", 7)]
)
def test_delay_level_accepts_plain_numbers_only(text: bytes, level: int) -> None:
    message = PLAIN._replace(properties=b"DELAY\x01" + text)
    assert incoming.delay_level(message) == level


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (b"TIMER_DELAY_SEC\x012\x02", 3_000),
        (b"TIMER_DELAY_MS\x012\x02", 1_002),
        (b"TIMER_DELIVER_MS\x0177\x02", 77),
        (b"TIMER_DELIVER_MS\x0177\x02TIMER_DELAY_SEC\x011\x02", 2_000),
        (b"TIMER_DELAY_SEC\x01soon\x02TIMER_DELAY_MS\x015\x02", 1_005),
        (b"TIMER_DELAY_SEC\x01" + b"9" * 5000, None),
        (b"TAGS\x01a\x02", None),
    ],
)
def test_delivery_time_is_parsed_from_timer_properties(text: bytes, moment: int | None) -> None:
    assert incoming.delivery_time(PLAIN._replace(properties=text), 1_000) == moment


def test_with_properties_replaces_repeated_names_once() -> None:
    twice = PLAIN._replace(properties=b"A\x011\x02B\x012\x02A\x013")
    assert twice.with_properties({b"A": b"4"}).properties == b"B\x012\x02A\x014\x02"
    assert twice.with_properties({b"A": b""}).properties == b"B\x012\x02"


def test_client_flag_drops_bits_that_describe_the_record() -> None:
    assert incoming.client_flag(-1) & flags.LAYOUT_MASK == 0
    assert incoming.client_flag(flags.LAYOUT_MASK | flags.COMPRESSED) == flags.COMPRESSED


def test_client_flag_keeps_bits_that_rocketmq_stores() -> None:
    kept = flags.COMPRESSED | flags.MULTI_TAGS | flags.COMPRESSION_ZSTD | flags.NEED_UNWRAP | 0x800
    assert incoming.client_flag(kept) == kept
    assert incoming.client_flag(flags.TRANSACTION_PREPARED) == flags.TRANSACTION_PREPARED
    assert incoming.client_flag(flags.TRANSACTION_COMMIT) == 0
