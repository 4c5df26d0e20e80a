"""Values by namespace and key."""

import pytest

from tianzhou.nameserver.kv import EMPTIED_MAX, KvTable
from tianzhou.nameserver.topics import TableFull


def test_kv_values_are_found_by_namespace_and_key() -> None:
    kv = KvTable()
    kv.put("n", "k", "1")
    kv.put("n", "k", "2")
    kv.put("m", "k", "3")
    assert kv.get("n", "k") == "2"
    assert kv.get("n", "x") is None
    assert kv.get("x", "k") is None
    assert kv.namespace("m") == {"k": "3"}
    assert kv.namespace("x") is None


def test_kv_delete_is_idempotent() -> None:
    kv = KvTable()
    kv.put("n", "k", "v")
    for _ in range(2):
        kv.delete("n", "k")
    kv.delete("x", "k")
    assert kv.get("n", "k") is None
    assert kv.namespace("n") == {}


def test_kv_namespace_emptied_differs_from_one_never_used() -> None:
    kv = KvTable()
    kv.put("n", "k", "v")
    kv.delete("n", "k")
    assert kv.namespace("n") == {}
    assert kv.namespace("m") is None
    kv.put("n", "k", "w")
    assert kv.namespace("n") == {"k": "w"}


def test_kv_emptied_namespaces_are_remembered_up_to_a_limit() -> None:
    kv = KvTable()
    for name in (*(str(number) for number in range(EMPTIED_MAX + 5)), "x" * 300):
        kv.put(name, "k", "v")
        kv.delete(name, "k")
    assert kv.namespace("4") is None
    assert kv.namespace("5") == {}
    assert kv.namespace("x" * 300) is None


def test_kv_put_is_limited_in_bytes_and_delete_frees_them() -> None:
    kv = KvTable(bytes_max=10)
    kv.put("n", "k", "12345678")
    kv.put("n", "k", "8" * 8)
    with pytest.raises(TableFull):
        kv.put("n", "l", "")
    with pytest.raises(TableFull):
        kv.put("n", "k", "é2345678")
    assert kv.get("n", "k") == "8" * 8
    kv.delete("n", "k")
    kv.put("n", "l", "12345678")
