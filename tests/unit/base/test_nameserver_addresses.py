import pytest

from tianzhou.base.nameserver_addresses import (
    NameServerList,
    is_host_name,
    nameserver_from,
    split_list,
    with_default_port,
)


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


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("mq.example:9876", True),
        ("localhost:1", True),
        ("10.0.0.1:9876", False),
        ("[::1]:9876", False),
        ("0x7f000001:9876", False),
    ],
)
def test_is_host_name_distinguishes_names_from_addresses(address: str, *, wanted: bool) -> None:
    assert is_host_name(address) is wanted


def test_list_replaces_a_resolved_name_by_all_its_addresses() -> None:
    servers = NameServerList(["10.0.0.1:1", "mq.example:1"])
    assert servers.addresses == ("10.0.0.1:1", "mq.example:1")
    assert servers.is_unresolved
    servers.learn({"mq.example:1": ("10.0.0.2:1", "10.0.0.1:1")})
    assert servers.addresses == ("10.0.0.1:1", "10.0.0.2:1"), "each server once"
    assert not servers.is_unresolved


def test_list_keeps_the_addresses_of_a_name_that_cannot_be_resolved_any_more() -> None:
    servers = NameServerList(["mq.example:1"])
    servers.learn({"mq.example:1": ("10.0.0.2:1",)})
    servers.learn({})
    servers.learn({"mq.example:1": ()})
    assert servers.addresses == ("10.0.0.2:1",)


def test_list_that_is_replaced_keeps_what_it_knows_of_names_that_stay() -> None:
    servers = NameServerList(["a.example:1", "b.example:1"])
    servers.learn({"a.example:1": ("10.0.0.1:1",), "b.example:1": ("10.0.0.2:1",)})
    servers.replace(["b.example:1", "10.0.0.9:1"])
    assert servers.addresses == ("10.0.0.2:1", "10.0.0.9:1")
    servers.replace(["a.example:1"])
    assert servers.addresses == ("a.example:1",), "forgotten, so it is resolved again"
