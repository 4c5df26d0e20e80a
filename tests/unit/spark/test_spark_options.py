"""Options: spellings, values, and the messages for invalid ones."""

import re

import pytest

from tianzhou.spark.errors import SourceError
from tianzhou.spark.option_values import EARLIEST, LATEST, read_duration_ms, read_time_ms
from tianzhou.spark.options import (
    READ,
    STORE,
    WRITE,
    ReadOptions,
    read_options_of,
    store_options_of,
    write_options_of,
)

NAMESERVER = {"nameserver": "127.0.0.1:9876"}
ORDERS = NAMESERVER | {"topic": "orders"}


def read(*, is_stream: bool = False, **given: str) -> ReadOptions:
    return read_options_of(ORDERS | given, is_stream=is_stream)


def test_option_names_ignore_case_and_accept_old_spellings() -> None:
    found = read_options_of(
        {
            "NameServer": "a:1,b:2",
            "TOPIC": "x, y",
            "subExpression": "p || q",
            "consumerGroup": "g",
            "pullBatchSize": "32",
            "STARTINGOFFSETS": '{"x":{"broker":{"0":23,"1":-1}}}',
        },
        is_stream=True,
    )
    assert found.cluster.nameserver == "a:1;b:2"
    assert found.topics == ("x", "y")
    assert (found.filter.tags, found.group, found.pull_count) == ("p || q", "g", 32)
    assert found.start.offsets == {"x": {"broker": {0: 23, 1: -1}}}


def test_starting_offsets_default_to_earliest_in_batches_latest_in_streams() -> None:
    assert (read().start.offsets, read().end.offsets) == (EARLIEST, LATEST)
    assert read(is_stream=True).start.offsets == LATEST
    assert read(is_stream=True, startingOffsets="Earliest").start.offsets == EARLIEST


def test_topic_option_is_names_or_a_pattern() -> None:
    pattern = read(topic="orders_.*").topics
    assert isinstance(pattern, re.Pattern)
    assert pattern.fullmatch("orders_cn")
    assert isinstance(read(topic="or[a-z]{2,4}s").topics, re.Pattern)
    assert read(topic="%DLQ%group").topics == ("%DLQ%group",)
    assert isinstance(
        read_options_of(NAMESERVER | {"topicPattern": "a|b"}, is_stream=False).topics, re.Pattern
    )


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("30s", 30_000), ("2 minutes", 120_000), ("7", 7), ("1h", 3_600_000)],
)
def test_option_durations_are_parsed_with_their_units(text: str, ms: int) -> None:
    assert read_duration_ms(text) == ms


def test_option_times_are_parsed_as_milliseconds_or_iso_8601() -> None:
    assert read_time_ms("1700000000123") == 1_700_000_000_123
    assert read_time_ms("2023-11-14T22:13:20") == 1_700_000_000_000
    assert read_time_ms("2023-11-15T06:13:20+08:00") == 1_700_000_000_000


WRONG = [
    ({"startingOffset": "latest"}, r"unknown option 'startingOffset': did you mean starting"),
    ({"zzzz": "1"}, r"unknown option 'zzzz': known are accessKey, "),
    ({"nameserver": "nowhere:"}, r"option nameserver is 'nowhere:'; it is not valid: address"),
    ({"topic": "a[b"}, r"it must be topic names or a regular expression"),
    ({"topic": ","}, r"option topic is ','; it must contain at least one name"),
    ({"topic": "orders!"}, r"topic 'orders!' is not made of letters, digits and % | _ - only"),
    ({"topic": "orders, pay.*"}, r"it contains a comma or a blank, which topic names cannot"),
    ({"group": "my group"}, r"option group is 'my group'; .*: invalid group 'my group'; use"),
    ({"columns": "body, Body"}, r"option columns is 'body, Body'; it must not name a column twice"),
    ({"startingTimestamp": "9" * 30}, r"it must be milliseconds since 1970 or a time such as"),
    ({"startingOffsets": "soon"}, r"option startingOffsets is 'soon'; it must be earliest, latest"),
    ({"startingOffsets": '{"a":{"b":{"0":-7}}}'}, r"invalid offset -7"),
    ({"startingTimestamp": "yesterday"}, r"it must be milliseconds since 1970 or a time such as"),
    ({"failOnDataLoss": "maybe"}, r"it must be true or false"),
    ({"minPartitions": "0"}, r"it must be a whole number, at least 1"),
    ({"maxTriggerDelay": "soon"}, r"it must be a duration such as 500ms"),
    ({"tags": "||"}, r"option tags is '\|\|'; it is not valid"),
    ({"sql92": "a >"}, r"option sql92 is 'a >'; it is not valid"),
    ({"tags": "a", "sql92": "a > 1"}, r"either tags or sql92, not both"),
    ({"startingOffsets": "earliest", "startingTimestamp": "0"}, r"not both"),
    ({"topicPattern": "a.*"}, r"either option topic or topicPattern"),
    ({"accessKey": "me"}, r"accessKey and secretKey must be set together"),
    (
        {"startingOffsets": "latest"},
        r"starts at the latest or ends at the earliest offset is empty",
    ),
    ({"topics": "other"}, r"option topic is set twice"),
    (
        {"startingTimestamp": "2", "endingTimestamp": "1"},
        r"startingTimestamp \(2\) must not exceed endingTimestamp \(1\)",
    ),
    (
        {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"},
        r"minOffsetsPerTrigger \(20\) must not exceed maxOffsetsPerTrigger \(10\)",
    ),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_invalid_options_are_reported(given: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        read_options_of(ORDERS | given, is_stream=False)
    assert str(caught.value).startswith("[ROCKETMQ.")


def test_all_invalid_options_are_reported_together() -> None:
    with pytest.raises(SourceError, match=r"minPartitions.*; option failOnDataLoss"):
        read(minPartitions="x", failOnDataLoss="y")


def test_stream_options_reject_end_and_pushdown() -> None:
    with pytest.raises(SourceError, match="a stream has no end"):
        read(is_stream=True, endingOffsets="latest")
    with pytest.raises(SourceError, match="pushdown is for batches"):
        read(is_stream=True, pushdown="true")


def test_options_hide_secrets() -> None:
    assert "hush" not in repr(read(accessKey="me", secretKey="hush").cluster)


def test_write_options_are_validated() -> None:
    found = write_options_of(ORDERS, is_stream=True)
    assert (found.topic, found.group, found.idempotent) == ("orders", "spark", False)
    with pytest.raises(SourceError, match="needs the option checkpointLocation at this query"):
        write_options_of(ORDERS | {"idempotent": "true"}, is_stream=True)
    given = ORDERS | {"idempotent": "true", "checkpointLocation": "x"}
    assert write_options_of(given, is_stream=True).checkpoint == "x"
    with pytest.raises(SourceError, match="idempotent=true needs the option topic"):
        write_options_of(NAMESERVER | {"idempotent": "true"}, is_stream=False)
    with pytest.raises(SourceError, match="option nameserver is missing"):
        write_options_of({"topic": "orders"}, is_stream=False)
    # Options that Spark adds.
    write_options_of(ORDERS | {"checkpointLocation": "x"}, is_stream=True)


def test_nameserver_option_defaults_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "b:2")
    assert read_options_of({"topic": "orders"}, is_stream=False).cluster.nameserver == "b:2"
    monkeypatch.setenv("TIANZHOU_NAMESERVER", "a")
    assert read_options_of({"topic": "orders"}, is_stream=False).cluster.nameserver == "a:9876"
    found = write_options_of({"topic": "orders", "nameserver": "c:3"}, is_stream=False)
    assert found.cluster.nameserver == "c:3"


def test_store_options_are_validated() -> None:
    found = store_options_of({"path": "data", "topic": "a,b", "verify": "false"})
    assert (found.path, found.topics, found.verify) == ("data", ("a", "b"), False)
    with pytest.raises(SourceError, match="option path is missing"):
        store_options_of({})


def test_every_option_has_a_description() -> None:
    for option in (READ | WRITE | STORE).values():
        assert option.help.endswith(".")
