"""The key-value store of the NameServer: values that administrators set, by namespace and key.

In memory only, as in RocketMQ: after a restart of all NameServers an administrator must set the
order configuration again. Only the namespace `ORDER_TOPIC_CONFIG` has a meaning.
"""

from collections.abc import Mapping
from typing import Final

from tianzhou.nameserver.topics import TableFull

BYTES_MAX: Final = 4 * 1024 * 1024
"""Total size of keys and values. A namespace is one response, in which JSON may need more."""


EMPTIED_MAX: Final = 1_000
EMPTIED_CHARS_MAX: Final = 256
"""Namespaces that are remembered after their last key was deleted, and how long their names may
be: RocketMQ lists such a namespace as an empty table, and one that never existed as not found."""


class KvTable:
    """Owner: the event loop of the name server."""

    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self._spaces: dict[str, dict[str, str]] = {}
        self._bytes = 0
        self._bytes_max = bytes_max
        self._emptied: dict[str, None] = {}
        """Ordered by time; the namespace emptied longest ago is first."""

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises TableFull without changing anything."""
        old = self._spaces.get(namespace, {}).get(key)
        size = self._bytes + _size(namespace, key, value)
        if old is not None:
            size -= _size(namespace, key, old)
        if size > self._bytes_max:
            raise TableFull(f"values of {size} bytes; {self._bytes_max} fit")
        self._bytes = size
        self._spaces.setdefault(namespace, {})[key] = value
        self._emptied.pop(namespace, None)

    def get(self, namespace: str, key: str) -> str | None:
        return self._spaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        space = self._spaces.get(namespace)
        value = space.pop(key, None) if space else None
        if space is None or value is None:
            return
        self._bytes -= _size(namespace, key, value)
        if not space:
            del self._spaces[namespace]
            self._remember(namespace)

    def _remember(self, emptied: str) -> None:
        if len(emptied) <= EMPTIED_CHARS_MAX:
            self._emptied[emptied] = None
            if len(self._emptied) > EMPTIED_MAX:
                del self._emptied[next(iter(self._emptied))]

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the keys and values of a namespace; None if it does not exist."""
        found = self._spaces.get(namespace)
        return {} if found is None and namespace in self._emptied else found


def _size(*texts: str) -> int:
    return sum(len(text.encode()) for text in texts)
