"""Subscriptions: all messages of a topic, some tags, or an expression over properties.

Tags are compared twice: the broker compares hash codes, which is fast but has collisions, so the
client compares the tags themselves. Only the broker evaluates expressions over properties.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from tianzhou.base.errors import UsageError
from tianzhou.filter.errors import FilterError
from tianzhou.filter.tags import ALL, EVERYTHING, TagFilter, parse_tags
from tianzhou.record import names
from tianzhou.wire.heartbeat import SubscriptionData
from tianzhou.wire.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, TOOLS_GROUP

INTERNAL_GROUPS: Final = (
    "CID_ONS",
    "CID_RMQ_SYS",
    "FILTERSRV_CONSUMER",
    "SELF_TEST",
    TOOLS_GROUP,
)
"""Prefixes of the groups that every broker creates for its own use."""
TAG: Final = "TAG"
SQL92: Final = "SQL92"


def is_internal_group(name: str) -> bool:
    """Whether brokers created the group for internal use; its lag does not concern users."""
    return name.startswith(INTERNAL_GROUPS)


@dataclass(frozen=True, slots=True)
class Sql92:
    """A filter over message properties in SQL92 syntax.

    Raises UsageError if it is empty. Brokers reject a filter that they cannot parse.

        consumer.subscribe("orders", Sql92("region = 'north' AND amount > 100"))
    """

    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UsageError("an SQL92 expression is empty; subscribe to * for everything")


@dataclass(frozen=True, slots=True)
class Subscription:
    topic: str
    expression: str
    kind: str
    version: int
    """Time of creation in milliseconds. Brokers keep the latest version of a group."""
    tags: TagFilter

    @property
    def is_tag(self) -> bool:
        return self.kind == TAG

    @property
    def accepts_tag(self) -> Callable[[bytes | None], bool] | None:
        """A test for tags, which the client applies; None if every message passes."""
        if self.tags.is_all:
            return None
        wanted = frozenset(tag.encode() for tag in self.tags.tags)
        return lambda tag: tag in wanted

    def to_data(self) -> SubscriptionData:
        """Return the subscription in the form of heartbeats."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            expression_type=self.kind,
            sub_version=self.version,
            tags_set=tuple(sorted(self.tags.tags)),
            code_set=tuple(sorted(self.tags.codes)),
        )


def checked_wishes(wishes: object) -> dict[str, "str | Sql92"]:
    """Return the subscriptions passed to a consumer: expressions by topic. Raises UsageError."""
    if wishes is None:
        return {}
    if not isinstance(wishes, Mapping):
        raise UsageError(
            f"subscribe is {wishes!r}; write a mapping of topics to expressions: {{'orders': '*'}}"
        )
    wanted = dict(cast("Mapping[str, str | Sql92]", wishes))
    for topic, expression in wanted.items():
        subscribe(topic, expression, version=0)
    return wanted


def subscribe(topic: str, expression: str | Sql92 = ALL, *, version: int) -> Subscription:
    """Create a subscription from tags separated by `||`, `*` for everything, or an `Sql92`.

    Raises UsageError for an invalid expression.
    """
    names.checked_topic(topic)
    if isinstance(expression, Sql92):
        return Subscription(topic, expression.text, SQL92, version, EVERYTHING)
    try:
        tags = parse_tags(expression)
    except FilterError as error:
        raise UsageError(f"subscription to {topic}: {error}") from error
    except AttributeError as error:
        raise UsageError(
            f"subscription to {topic}: {expression!r} is neither tags as text nor an Sql92"
        ) from error
    return Subscription(topic, ALL if tags.is_all else expression, TAG, version, tags)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group
