"""Names that strangers give to things."""

import pytest
from registering import topic

from tianzhou.base.errors import UsageError
from tianzhou.nameserver.checks import checked_name, checked_topic_name, is_sound, sound_topics
from tianzhou.wire.tables import TopicConfig

BAD = ["", "a\n", "a b", 'a"', "a{", "é", "١", "a" * 256, "a\0", "a/b"]


@pytest.mark.parametrize("name", BAD)
def test_checked_name_rejects_an_invalid_name(name: str) -> None:
    with pytest.raises(UsageError):
        checked_name(name, "brokerName")
    with pytest.raises(UsageError):
        checked_topic_name(name)
    assert sound_topics({name: topic(name)}, also=("b",)) == ()


def test_checked_name_accepts_a_host_name_for_a_broker() -> None:
    name = "host.example.com"
    assert checked_name(name, "brokerName") == name
    assert sound_topics({name: topic(name)}, also=(name,)) == (topic(name),)
    assert sound_topics({name: topic(name)}, also=()) == ()


def test_checked_topic_name_allows_longer_names_for_group_topics() -> None:
    for prefix in ("%RETRY%", "%DLQ%"):
        name = prefix + "g" * (255 - len(prefix))
        assert checked_topic_name(name) == name
        with pytest.raises(UsageError):
            checked_topic_name(name + "g")
        with pytest.raises(UsageError):
            checked_topic_name(prefix + "g" * 130 + "\n")
    assert checked_topic_name("T" * 127)
    with pytest.raises(UsageError):
        checked_topic_name("T" * 128)


@pytest.mark.parametrize(
    "config",
    [
        topic("T", queues=-1),
        topic("T", queues=1 << 40),
        topic("T", perm=-1),
        topic("T", perm=16),
        topic("T", flag=1 << 31),
        topic("T", flag=-1),
    ],
)
def test_sound_topics_omit_numbers_that_clients_cannot_use(config: TopicConfig) -> None:
    assert not is_sound(config)
    assert sound_topics({"T": config, "U": topic("U")}, also=()) == (topic("U"),)
