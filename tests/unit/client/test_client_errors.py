"""Client errors say what to do next."""

import pytest

from tianzhou.base.errors import Retry
from tianzhou.client.errors import NoNameServer, RemoteError, remote_error


@pytest.mark.parametrize(
    ("code", "retry"),
    [
        (1, Retry.OTHER_BROKER),
        (2, Retry.OTHER_BROKER),
        (13, Retry.NEVER),
        (14, Retry.OTHER_BROKER),
        (16, Retry.AFTER_ROUTE_REFRESH),
        (17, Retry.AFTER_ROUTE_REFRESH),
        (29, Retry.NEVER),
        (204, Retry.AFTER_ROUTE_REFRESH),
        (205, Retry.AFTER_ROUTE_REFRESH),
        (1500, Retry.OTHER_BROKER),
        (31_999, Retry.NEVER),
    ],
)
def test_an_answer_says_whether_to_try_again(code: int, retry: Retry) -> None:
    error = remote_error("h:1", code, "because")
    assert error.retry is retry
    assert (error.code, error.remark, error.address) == (code, "because", "h:1")
    assert str(code) in str(error)
    assert "because" in str(error)


def test_codes_have_one_class_each() -> None:
    assert len(RemoteError.by_code) >= 15
    assert type(remote_error("h:1", 2, None)) is not RemoteError


def test_no_name_server_names_all_that_were_asked() -> None:
    assert "a:1: gone; b:2: slow" in str(NoNameServer({"a:1": "gone", "b:2": "slow"}))
