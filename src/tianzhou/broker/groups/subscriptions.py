"""Filters of pulls: everything, some tags, or a SQL92 expression."""

from collections import OrderedDict
from typing import Final, NamedTuple

from tianzhou.broker.config import BrokerConfig
from tianzhou.filter.errors import FilterError
from tianzhou.filter.sql92 import Expression, compile_sql
from tianzhou.filter.tags import parse_tags
from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import ResponseCode

TAG: Final = "TAG"
SQL92: Final = "SQL92"
CACHED_MAX: Final = 1_000
CACHED_CHARS_MAX: Final = 4 * 1024 * 1024
"""Of all texts together; a compiled filter takes a few times as much memory."""
TEXT_CHARS_MAX: Final = 32 * 1024
"""Room for a thousand tags. A thousand pulls of one connection may wait, each with its text."""


class Filter(NamedTuple):
    """At most one of the two is set; if neither is, everything matches."""

    codes: frozenset[int] | None = None
    expression: Expression | None = None


EVERYTHING: Final = Filter()


class Filters:
    """A cache of filters by their text. Pulls repeat the same few subscriptions."""

    def __init__(self, *, sql_enabled: bool) -> None:
        self._sql_enabled = sql_enabled
        self._chars = 0
        self._cache: OrderedDict[tuple[str, str], Filter] = OrderedDict()

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        if self._sql_enabled != config.sql_filters:
            self._sql_enabled = config.sql_filters
            self._cache.clear()  # it may hold filters that are no longer served
            self._chars = 0

    def get(self, kind: str | None, text: str | None) -> Filter:
        """Return the filter for a subscription. Raises RequestRejected if the text is invalid."""
        key = (kind or TAG, text or "")
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._make(*key)
            self._chars += len(key[1])
            while len(self._cache) > CACHED_MAX or self._chars > CACHED_CHARS_MAX:
                (_, old), _ = self._cache.popitem(last=False)
                self._chars -= len(old)
        return found

    def _make(self, kind: str, text: str) -> Filter:
        if len(text) > TEXT_CHARS_MAX:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"a subscription has at most {TEXT_CHARS_MAX} characters, got {len(text)}",
            )
        try:
            if kind == TAG:
                tags = parse_tags(text)
                return EVERYTHING if tags.is_all else Filter(codes=tags.codes)
            if kind == SQL92 and self._sql_enabled:
                return Filter(expression=compile_sql(text))
        except FilterError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"the broker does not support subscriptions by {kind[:32]}"
        )
