"""Attributes of topics as text and as changes."""

import pytest

from tianzhou.broker.topics.attributes import alter, parse
from tianzhou.net.rpc import RequestRejected


def test_attributes_text_is_parsed_into_changes() -> None:
    assert parse("+a=b, -c ,d=e,,") == {"+a": "b", "-c": "", "d": "e"}
    assert parse(None) == parse("") == {}


def test_attributes_changes_apply_to_the_current_values() -> None:
    current = {"message.type": "NORMAL"}
    assert alter(current, {"+message.type": "FIFO"}) == {"message.type": "FIFO"}
    assert alter(current, {"cleanup.policy": "DELETE"}) == current | {"cleanup.policy": "DELETE"}
    assert alter(current, {"-message.type": ""}) == {}
    assert alter(current, {"-queue.type": ""}) == current
    assert current == {"message.type": "NORMAL"}


@pytest.mark.parametrize("change", [{"+colour": "red"}, {"-colour": ""}, {"+queue.type": "x"}])
def test_attributes_that_are_unknown_are_rejected(change: dict[str, str]) -> None:
    with pytest.raises(RequestRejected):
        alter({}, change)
