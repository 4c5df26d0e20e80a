"""Questions and answers: `wire/pending.py`."""

import math

import pytest

from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import Header, decode_header
from tianzhou.wire.errors import CannotEncode, TooLargeToSend, TooManyPending
from tianzhou.wire.frame import SerialiseType
from tianzhou.wire.pending import PendingRequests


def answer(opaque: int) -> Header:
    return Header(code=0, opaque=opaque, flag=1)


def sent(head: bytes) -> Header:
    return decode_header(head[8:], head[4])


def test_pending_requests_match_responses_in_any_order() -> None:
    connection: PendingRequests[str] = PendingRequests()
    first = sent(connection.request(11, {"topic": "T"}, token="first", deadline=5.0))
    second = sent(connection.request(11, token="second", deadline=5.0, body_size=3))
    assert (first.code, first.ext) == (11, {"topic": "T"})
    assert first.opaque != second.opaque
    assert connection.pending_count == 2
    assert connection.answered(answer(second.opaque)) == "second"
    assert connection.answered(answer(first.opaque)) == "first"
    assert connection.pending_count == 0


@pytest.mark.parametrize("form", SerialiseType)
def test_pending_requests_send_codes_as_numbers(form: SerialiseType) -> None:
    connection: PendingRequests[str] = PendingRequests(serialise_type=form)
    header = sent(connection.request(RequestCode.POP_MESSAGE, token="x", deadline=1.0))
    assert (header.code, header.serialise_type) == (200050, form)


def test_pending_requests_count_an_unmatched_response() -> None:
    connection: PendingRequests[str] = PendingRequests()
    connection.request(11, token="x", deadline=5.0)
    assert connection.answered(answer(99)) is None
    assert connection.answered(answer(0)) == "x"
    assert connection.answered(answer(0)) is None
    assert connection.unmatched_count == 2


def test_pending_requests_expire_and_late_responses_are_ignored() -> None:
    connection: PendingRequests[str] = PendingRequests()
    connection.request(1, token="a", deadline=3.0)
    connection.request(1, token="b", deadline=1.0)
    connection.request(1, token="c", deadline=2.0)
    assert connection.next_deadline == 1.0
    assert connection.expire(0.9) == []
    assert connection.expire(2.0) == ["b", "c"]
    assert connection.next_deadline == 3.0
    assert connection.answered(answer(1)) is None
    assert connection.unmatched_count == 1
    assert connection.expire(3.0) == ["a"]
    assert connection.next_deadline == math.inf
    assert connection.expire(1e9) == []


def test_pending_requests_next_deadline_is_never_too_late() -> None:
    connection: PendingRequests[str] = PendingRequests()
    connection.request(1, token="a", deadline=1.0)
    connection.answered(answer(0))
    connection.request(1, token="b", deadline=2.0)
    assert connection.next_deadline <= 2.0
    assert connection.expire(1.5) == []
    assert connection.next_deadline == 2.0


def test_pending_requests_exclude_oneway_requests() -> None:
    connection: PendingRequests[str] = PendingRequests()
    header = sent(connection.oneway(15, {"a": "1"}))
    assert header.is_oneway
    assert connection.pending_count == 0


def test_pending_requests_opaque_wraps_and_skips_those_in_use() -> None:
    connection: PendingRequests[str] = PendingRequests(first_opaque=2**31 - 1)
    opaques = [sent(connection.request(1, token=str(i), deadline=1.0)).opaque for i in range(3)]
    assert opaques == [2**31 - 1, 0, 1]
    again: PendingRequests[str] = PendingRequests(first_opaque=2**31 - 1)
    again.request(1, token="stays", deadline=1.0)
    again._opaque = 2**31 - 1  # As after 2**31 requests.
    assert sent(again.request(1, token="next", deadline=1.0)).opaque == 0


def test_pending_requests_close_returns_all() -> None:
    connection: PendingRequests[str] = PendingRequests()
    connection.request(1, token="a", deadline=3.0)
    connection.request(1, token="b", deadline=1.0)
    assert connection.close() == ["a", "b"]
    assert connection.pending_count == 0
    assert connection.expire(9.0) == []


def test_pending_requests_are_limited() -> None:
    connection: PendingRequests[int] = PendingRequests(pending_max=2)
    connection.request(1, token=0, deadline=1.0)
    connection.request(1, token=0, deadline=1.0)
    with pytest.raises(TooManyPending, match="2 requests"):
        connection.request(1, token=0, deadline=1.0)
    connection.oneway(1)


def test_pending_requests_exclude_requests_that_cannot_be_encoded() -> None:
    connection: PendingRequests[int] = PendingRequests(serialise_type=SerialiseType.BINARY)
    with pytest.raises(CannotEncode):
        connection.request(99_999, token=0, deadline=1.0)
    with pytest.raises(TooLargeToSend):
        connection.request(10, token=0, deadline=1.0, body_size=2**24)
    assert connection.pending_count == 0
