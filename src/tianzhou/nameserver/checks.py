"""Which names brokers and topics may have. Names are part of responses to every client."""

import re
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.record.names import checked_topic
from tianzhou.wire.names import DEAD_LETTER_PREFIX, PERM_ALL, RETRY_PREFIX
from tianzhou.wire.routes import QueueData
from tianzhou.wire.tables import TopicConfig

# Java names a broker after its host by default, so names may contain dots.
_NAME: Final = re.compile(r"[%|A-Za-z0-9_.-]{1,255}")
# Groups may be longer than topics, and their topics carry a prefix.
_OF_GROUP: Final = re.compile(
    rf"(?=.{{1,255}}\Z)(?:{RETRY_PREFIX}|{DEAD_LETTER_PREFIX})[%|A-Za-z0-9_-]+"
)

QUEUES_MAX: Final = 65_536
"""Clients create an object for each queue of a route."""


def checked_name(name: str, what: str) -> str:
    """Validate the name of a broker, a cluster or a zone. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name[:300]!r} must have 1 to 255 letters, digits and % | _ . - only"
        )
    return name


def checked_topic_name(topic: str) -> str:
    """Validate a topic that a broker registers. Raises UsageError."""
    return topic if _OF_GROUP.fullmatch(topic) else checked_topic(topic)


def sound_topics(
    configs: dict[str, TopicConfig], *, also: tuple[str, ...]
) -> tuple[TopicConfig, ...]:
    """Return the topics with valid names and numbers of queues.

    Invalid topics are left out instead of rejecting the broker: its other topics need a route.
    Every broker has topics named after itself and its cluster, whatever the rules for topics.
    """
    return tuple(
        config
        for config in configs.values()
        if is_sound(config) and (config.topic_name in also or _is_topic(config.topic_name))
    )


def is_sound(shape: TopicConfig | QueueData) -> bool:
    """Whether clients can use these numbers of queues."""
    counts = shape.read_queue_nums, shape.write_queue_nums
    return (
        all(0 <= count <= QUEUES_MAX for count in counts)
        and 0 <= shape.perm <= PERM_ALL
        and 0 <= shape.topic_sys_flag < 1 << 31
    )


def _is_topic(name: str) -> bool:
    try:
        checked_topic_name(name)
    except UsageError:
        return False
    return True
