import pytest

from tianzhou.base.errors import UsageError
from tianzhou.record import names
from tianzhou.record.names import checked_key, checked_tag, checked_topic, is_reserved


def test_reserved_names_include_every_declared_name() -> None:
    spelt = {name: value for name, value in vars(names).items() if isinstance(value, bytes)}
    del spelt["TRANSIENT_PREFIX"]
    assert len(spelt) > 60
    assert set(spelt.values()) == names.RESERVED
    assert len(set(spelt.values())) == len(spelt), "two names for one property"
    assert all(is_reserved(value) for value in spelt.values())


@pytest.mark.parametrize("name", ["TAGS", b"TAGS", "KEYS", "UNIQ_KEY", "__CRC32#", "PGROUP"])
def test_is_reserved_accepts_text_and_bytes(name: str | bytes) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["tags", "TAGS ", "", "colour", b"colour", "\ud800"])
def test_is_reserved_is_case_sensitive(name: str | bytes) -> None:
    assert not is_reserved(name), "case matters"


def test_is_reserved_includes_the_transient_prefix() -> None:
    assert is_reserved("__RMQ.TRANSIENT.anything")
    assert not is_reserved("x__RMQ.TRANSIENT.anything")


@pytest.mark.parametrize("topic", ["a", "A-1_b", "%RETRY%group", "a|b", "t" * 127])
def test_checked_topic_accepts_valid_names(topic: str) -> None:
    assert checked_topic(topic) == topic


@pytest.mark.parametrize("topic", ["", "a b", "a.b", "a/b", "a\n", "主题", "a@b", "../x"])
def test_checked_topic_rejects_other_characters(topic: str) -> None:
    with pytest.raises(UsageError, match="is not made of letters, digits and"):
        checked_topic(topic)


def test_checked_topic_rejects_a_too_long_name() -> None:
    with pytest.raises(UsageError, match="has 128 bytes; at most 127"):
        checked_topic("t" * 128)


@pytest.mark.parametrize("tag", ["a", "a b", "a|b", "标签", "*"])
def test_checked_tag_accepts_valid_tags(tag: str) -> None:
    assert checked_tag(tag) == tag


@pytest.mark.parametrize("tag", ["", " a", "a ", "a||b", "\ta"])
def test_checked_tag_rejects_tags_that_cannot_be_subscribed_to(tag: str) -> None:
    with pytest.raises(UsageError, match=r"is empty, has \|\| in it or blanks around it"):
        checked_tag(tag)


def test_checked_key_rejects_empty_keys_and_spaces() -> None:
    assert checked_key("order-1\t") == "order-1\t", "only the space separates keys"
    for wrong in ("", "a b", " "):
        with pytest.raises(UsageError, match="give several keys as a list"):
            checked_key(wrong)
