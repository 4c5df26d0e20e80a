"""fastjson: its dialect is read as the same value, and arbitrary input never crashes."""

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.wire import heartbeat, queues, routes, tables
from tianzhou.wire.errors import BodyError
from tianzhou.wire.fastjson import Json, parse, to_standard

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars: st.SearchStrategy[Json] = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | text
)
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=10,
)


def sloppy(value: Json, spaces: st.DataObject, *, in_key: bool = False) -> tuple[str, Json]:
    """Writes a value with unquoted and object keys and extra spaces; also returns its meaning."""
    gap = spaces.draw(st.sampled_from(["", "", " ", "\n\t"]))
    if isinstance(value, list):
        parts = [sloppy(item, spaces, in_key=in_key) for item in value]
        written = f"{gap},".join(part for part, _ in parts)
        return f"[{written}{gap}]", [meaning for _, meaning in parts]
    if not isinstance(value, dict):
        return f"{gap}{json.dumps(value)}", value
    rows: list[str] = []
    meant: dict[str, Json] = {}
    for key, item in value.items():
        key_text, key_meant = sloppy_key(key, spaces, in_key=in_key)
        item_text, meant[key_meant] = sloppy(item, spaces, in_key=in_key)
        rows.append(f"{gap}{key_text}{gap}:{item_text}")
    return f"{{{','.join(rows)}{gap}}}", meant


def sloppy_key(key: str, spaces: st.DataObject, *, in_key: bool) -> tuple[str, str]:
    how = spaces.draw(st.sampled_from(["quoted", "bare", "object"]))
    if how == "bare":
        return str(len(key)), str(len(key))
    if how == "object" and not in_key:
        written = json.dumps({"topic": key, "queueId": len(key)}, separators=(",", ":"))
        return written, written
    return json.dumps(key), key


@given(values, st.data())
def test_fastjson_dialect_is_read_as_the_same_value(value: Json, data: st.DataObject) -> None:
    written, meant = sloppy(value, data)
    assert parse(written.encode()) == meant
    assert json.loads(to_standard(written.encode())) == meant


@given(values)
def test_standard_json_is_left_unchanged(value: Json) -> None:
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    assert to_standard(compact) == compact


DECODERS = [
    parse,
    heartbeat.decode_heartbeat,
    queues.decode_consume_stats,
    queues.decode_lock_batch,
    routes.decode_route,
    tables.decode_topic_table,
]
fragments = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b":", b",", b"0", b'"a"', b'"topic"', b"null", b"-", b'"', b"\xff"]
    ),
    max_size=30,
).map(b"".join)


@given(fragments | st.binary(max_size=60), st.sampled_from(DECODERS))
def test_fastjson_of_any_bytes_parses_or_raises_one_error(noise: bytes, decode: object) -> None:
    assert callable(decode)
    with contextlib.suppress(BodyError):
        decode(noise)
