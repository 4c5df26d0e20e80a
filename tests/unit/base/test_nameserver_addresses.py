import pytest

from tianzhou.base.nameserver_addresses import nameserver_from, split_list, with_default_port


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("mq.example", "mq.example:9876"),
        ("10.0.0.1", "10.0.0.1:9876"),
        ("10.0.0.1:1", "10.0.0.1:1"),
        ("[::1]", "[::1]:9876"),
        ("[::1]:1", "[::1]:1"),
        ("::1:1", "::1:1"),
        ("", ""),
    ],
)
def test_with_default_port_adds_a_missing_port_only(address: str, wanted: str) -> None:
    assert with_default_port(address) == wanted


def test_split_list_splits_at_semicolons_and_commas() -> None:
    assert split_list(" a ;b:1,, c ") == ["a:9876", "b:1", "c:9876"]
    assert split_list(" ; ") == []


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"NAMESRV_ADDR": "b:2"}, "b:2"),
        ({"NAMESRV_ADDR": "b:2", "TIANZHOU_NAMESERVER": "a:1"}, "a:1"),
        ({"NAMESRV_ADDR": "b:2", "TIANZHOU_NAMESERVER": " "}, "b:2"),
    ],
)
def test_nameserver_from_prefers_our_variable_to_rocketmqs(
    environment: dict[str, str], wanted: str | None
) -> None:
    assert nameserver_from(environment) == wanted
