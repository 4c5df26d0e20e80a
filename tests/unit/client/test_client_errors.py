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
def test_remote_error_reports_whether_to_retry(code: int, retry: Retry) -> None:
    error = remote_error("h:1", code, "because")
    assert error.retry is retry
    assert (error.code, error.remark, error.address) == (code, "because", "h:1")
    assert str(code) in str(error)
    assert "because" in str(error)


def test_remote_error_has_a_class_for_each_code() -> None:
    assert len(RemoteError.by_code) >= 15
    assert type(remote_error("h:1", 2, None)) is not RemoteError


def test_no_name_server_error_lists_every_server_that_was_tried() -> None:
    assert "a:1: gone; b:2: slow" in str(NoNameServer({"a:1": "gone", "b:2": "slow"}))
