"""Hosts that look like names and are addresses."""

import pytest

from tianzhou.base.host_names import is_disguised_address, with_port


@pytest.mark.parametrize(
    "host", ["2852039166", "0xa9fea9fe", "0XA9.1", "127.1", "0", "0x7f.1", "1..2", "10.0.0.256"]
)
def test_is_disguised_address_of_a_number_is_true(host: str) -> None:
    assert is_disguised_address(host)


@pytest.mark.parametrize(
    "host", ["broker-1", "1and1.example", "0xyz", "a.1", "7-7", "1" * 253 + "-"]
)
def test_is_disguised_address_of_a_name_is_false(host: str) -> None:
    assert not is_disguised_address(host)


def test_with_port_puts_brackets_around_ipv6() -> None:
    assert with_port("::1", 5) == "[::1]:5"
    assert with_port("h", 5) == "h:5"
