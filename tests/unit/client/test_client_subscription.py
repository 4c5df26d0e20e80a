"""Subscriptions as users write them and as brokers are told."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.subscription import (
    Sql92,
    checked_wishes,
    dead_letter_topic,
    retry_topic,
    subscribe,
)


@pytest.mark.parametrize("expression", ["", "*"])
def test_subscribe_to_everything_has_no_tag_filter(expression: str) -> None:
    made = subscribe("orders", expression, version=7)
    assert made.to_data().sub_string == "*"
    assert made.accepts_tag is None


def test_subscribe_to_tags_compares_them_by_name() -> None:
    """`Aa` and `BB` have the same hash, so the broker lets both through."""
    made = subscribe("orders", "Aa || c", version=7)
    assert made.accepts_tag is not None
    assert [made.accepts_tag(tag) for tag in (b"Aa", b"BB", b"c", None)] == [
        True,
        False,
        True,
        False,
    ]
    data = made.to_data()
    assert data.tags_set == ("Aa", "c")
    assert data.code_set == (99, 2112)
    assert (data.expression_type, data.sub_version) == ("TAG", 7)


def test_subscribe_with_sql92_leaves_filtering_to_the_broker() -> None:
    made = subscribe("orders", Sql92("amount > 3"), version=7)
    assert made.accepts_tag is None
    assert (made.to_data().expression_type, made.to_data().sub_string) == ("SQL92", "amount > 3")


@pytest.mark.parametrize("wrong", ["||", "||||"])
def test_subscribe_with_separators_only_is_rejected(wrong: str) -> None:
    with pytest.raises(UsageError, match="subscription to orders"):
        subscribe("orders", wrong, version=7)


def test_sql92_with_an_empty_expression_is_rejected() -> None:
    with pytest.raises(UsageError, match="empty"):
        Sql92("  ")


@pytest.mark.parametrize("wrong", ["orders", ["orders"], {"orders"}])
def test_subscriptions_without_expressions_are_rejected(wrong: object) -> None:
    with pytest.raises(UsageError, match=r"write a mapping of topics to expressions: \{'orders'"):
        checked_wishes(wrong)


def test_subscription_with_an_invalid_expression_is_rejected() -> None:
    with pytest.raises(UsageError, match="subscription to orders: None is neither"):
        checked_wishes({"orders": None})


def test_retry_and_dead_letter_topics_have_their_prefixes() -> None:
    assert (retry_topic("g"), dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")
    with pytest.raises(UsageError):
        subscribe("no such!", version=1)
