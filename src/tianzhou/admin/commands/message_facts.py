"""One message, as JSON and as text.

The JSON can be sent again: `tianzhou consume --json | tianzhou produce --format json`.
"""

import base64
from typing import TYPE_CHECKING, Any, Final

from tianzhou.admin.commands import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.record.message import MessageView

SENT: Final = ("body", "body_base64", "tags", "keys", "properties", "light_queues")
"""Fields that a producer sets."""
TOLD: Final = (
    "topic",
    "queue_id",
    "queue_offset",
    "message_id",
    "offset_id",
    "born_ms",
    "stored_ms",
    "born_host",
    "store_host",
    "reconsume_times",
    "system",
)
"""Fields that clients and brokers add."""


def facts_of(message: "MessageView") -> dict[str, Any]:
    text = output.body_text(message.body)
    body = (
        {"body_base64": base64.b64encode(message.body).decode()} if text is None else {"body": text}
    )
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "born_host": f"{message.born_host.address}:{message.born_host.port}",
        "store_host": f"{message.store_host.address}:{message.store_host.port}",
        "reconsume_times": message.reconsume_times,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": message.user_properties,
        "light_queues": message.light_queues,
        "system": message.system_properties,
        **body,
    }


def body_of(facts: dict[str, Any]) -> bytes:
    encoded = facts.get("body_base64")
    return facts["body"].encode() if encoded is None else base64.b64decode(encoded)


def rows(messages: "list[MessageView]") -> list[dict[str, Any]]:
    return list(map(facts_of, messages))


def view_rows(found: list[dict[str, Any]]) -> "RenderableType":
    if not found:
        return output.sentence("no messages")
    return output.table(_COLUMNS, map(_cells, found))


def view_dead_letters(found: list[dict[str, Any]]) -> "RenderableType":
    if not found:
        return output.sentence("no dead letters")
    return output.table(("replayed", *_COLUMNS), [(row["replayed"], *_cells(row)) for row in found])


_COLUMNS: Final = ("stored", "queue", "offset", "message id", "tag", "keys", "body")


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        output.time_text(row["stored_ms"]),
        row["queue_id"],
        row["queue_offset"],
        row["message_id"],
        row["tags"],
        " ".join(row["keys"]),
        output.body_cell(body_of(row), 60),
    )


def view_one(found: dict[str, Any]) -> "RenderableType":
    body = body_of(found)
    facts = {
        "topic": found["topic"],
        "queue, offset": f"{found['queue_id']}, {found['queue_offset']}",
        "message id": found["message_id"],
        "offset id": found["offset_id"],
        "born": f"{output.time_text(found['born_ms'])} at {found['born_host']}",
        "stored": f"{output.time_text(found['stored_ms'])} at {found['store_host']}",
        "reconsume times": found["reconsume_times"],
        "tag": found["tags"],
        "keys": " ".join(found["keys"]),
    }
    facts |= {f"property {name}": value for name, value in found["properties"].items()}
    facts |= {f"light queue {name}": offset for name, offset in found["light_queues"].items()}
    facts |= {f"system {name}": value for name, value in found["system"].items()}
    parts = [output.pairs(facts), output.sentence(f"body, {len(body):,} bytes:")]
    text = output.body_text(body)
    lines = [body.hex(" ", 2)] if text is None else text.split("\n")
    return output.stack(*parts, *map(output.verbatim, lines))
