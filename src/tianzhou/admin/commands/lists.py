"""Rows of `tianzhou topic list` and `group list`, with two requests to each broker, however long
the lists are. Brokers that do not support these requests are asked about each name separately.
"""

from typing import TYPE_CHECKING, Any

from tianzhou.wire.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from tianzhou.client.sync.admin import Admin
    from tianzhou.wire.view_bodies import GroupRow


def topic_rows(admin: "Admin", *, internal: bool) -> list[dict[str, Any]]:
    rows, looked = admin.views.topics()
    groups, also = admin.views.groups()
    if looked.missing or also.missing:
        return _topics_one_by_one(admin, internal=internal)
    brokers: dict[str, int] = {}
    for look in looked.found.values():
        for row in look.topics:
            brokers[row.name] = brokers.get(row.name, 0) + 1
    readers = _readers(groups)
    return [
        {
            "topic": row.name,
            "brokers": brokers[row.name],
            "queues": row.read_queues,
            "messages": row.count,
            "sent_per_second": row.put_per_second,
            "groups": readers.get(row.name, []),
        }
        for row in rows
        if internal
        or not (row.is_system or row.name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))
    ]


def _readers(groups: "list[GroupRow]") -> dict[str, list[str]]:
    """Names of groups by topic."""
    readers: dict[str, list[str]] = {}
    for group in groups:
        for topic in group.topics:
            readers.setdefault(topic, []).append(group.name)
    return readers


def _topics_one_by_one(admin: "Admin", *, internal: bool) -> list[dict[str, Any]]:
    return [
        {
            "topic": state.name,
            "brokers": len(state.configs),
            "queues": len(state.queues),
            "messages": state.count,
            "sent_per_second": state.put_per_second,
            "groups": list(state.groups),
        }
        for state in map(admin.topics.show, admin.topics.all(internal=internal))
    ]


def group_rows(admin: "Admin", now_ms: int) -> list[dict[str, Any]]:
    rows, looked = admin.views.groups()
    if looked.missing:
        return [_summary(admin, name) for name in admin.groups.all()]
    return [
        {
            "group": row.name,
            "members": row.members,
            "topics": [name for name in row.topics if not name.startswith(RETRY_PREFIX)],
            "lag": row.lag,
            "behind_s": _seconds_since(row.oldest_ms, now_ms),
            "read_per_second": row.get_per_second,
            "stuck": row.stuck,
        }
        for row in rows
    ]


def _seconds_since(time_ms: int, now_ms: int) -> float | None:
    """None if the broker has not determined it yet."""
    if time_ms < 0:
        return None
    return max(0, now_ms - time_ms) / 1000 if time_ms else 0.0


def _summary(admin: "Admin", name: str) -> dict[str, Any]:
    connected = admin.groups.consumers(name)
    progress = admin.offsets.progress(name)
    return {
        "group": name,
        "members": len(connected.connection_set) if connected else 0,
        "topics": sorted({row.queue.topic for row in progress.queues}),
        "lag": progress.lag,
        "behind_s": progress.behind_s,
        "read_per_second": progress.get_per_second,
        "stuck": 0,  # these brokers have no watchdog
    }
