"""Names of internal topics and groups, and which names clients may choose."""

import re
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.wire import names as wire

TEMPLATE_TOPIC: Final = wire.DEFAULT_TOPIC
SCHEDULE_TOPIC: Final = wire.SCHEDULE_TOPIC
SELF_TEST_TOPIC: Final = wire.SELF_TEST_TOPIC
BENCHMARK_TOPIC: Final = wire.BENCHMARK_TOPIC
OFFSET_MOVED_TOPIC: Final = wire.OFFSET_MOVED_TOPIC
TRACE_TOPIC: Final = wire.TRACE_TOPIC
HALF_TOPIC: Final = wire.HALF_TOPIC
OP_TOPIC: Final = wire.OP_TOPIC
CHECKED_OUT_TOPIC: Final = wire.CHECKED_OUT_TOPIC
TIMER_TOPIC: Final = wire.TIMER_TOPIC
SYSTEM_PREFIX: Final = wire.SYSTEM_PREFIX
REPLY_SUFFIX: Final = wire.REPLY_TOPIC_SUFFIX
RETRY_PREFIX: Final = wire.RETRY_PREFIX
DEAD_PREFIX: Final = wire.DEAD_LETTER_PREFIX

TRANSACTION_GROUP: Final = wire.TRANSACTION_GROUP
SYSTEM_GROUP_PREFIX: Final = wire.SYSTEM_GROUP_PREFIX

SYSTEM_GROUPS: Final = (
    wire.TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)

NOT_FOR_PRODUCERS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        CHECKED_OUT_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""The broker would mistake a client's message there for its own; `is_own` covers the rest."""

TOPIC_CHARS_MAX: Final = 127
GROUP_CHARS_MAX: Final = 120
DERIVED_CHARS_MAX: Final = 255
"""Retry and dead-letter topics carry the name of a group."""

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_topic(group: str) -> str:
    return DEAD_PREFIX + group


def group_of_retry(topic: str) -> str:
    return topic[len(RETRY_PREFIX) :]


def is_own(topic: str) -> bool:
    """Topics that only the broker writes to: their messages are commands to it, such as deleting
    the topics of a Raft group."""
    return topic in NOT_FOR_PRODUCERS or topic.startswith(SYSTEM_PREFIX)


def is_system(topic: str, *, cluster: str, broker: str) -> bool:
    """Topics that no client may change or delete."""
    return (
        is_own(topic)
        or topic in (TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, cluster, broker)
        or topic == cluster + REPLY_SUFFIX
    )


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or is_own_group(group)


def is_own_group(group: str) -> bool:
    """Groups whose offsets are progress of the broker itself, such as that of transactions."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def checked_topic(topic: str) -> str:
    """The name, if a topic may have it."""
    derived = topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
    return _checked("topic", topic, DERIVED_CHARS_MAX if derived else TOPIC_CHARS_MAX)


def checked_group(group: str) -> str:
    return _checked("group", group, GROUP_CHARS_MAX)


def _checked(kind: str, name: str, chars_max: int) -> str:
    if not _ALLOWED.fullmatch(name):
        raise UsageError(
            f"the name of {kind} {name[:64]!r} may contain letters, digits and % | _ - only"
        )
    if len(name) > chars_max:
        raise UsageError(
            f"the name of {kind} {name[:64]!r}… has {len(name)} characters, more than {chars_max}"
        )
    return name
