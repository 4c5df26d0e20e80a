"""Bodies of every format become columns; invalid bodies are kept, with the reason."""

import io
import json
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pipelines.conftest import Place
from tianzhou.spark.pipelines.errors import PipelineError

SINK = "sinks: [{type: parquet, path: out}]\n"


def quarantined(place: Place, name: str) -> dict[bytes, str]:
    rows = place.rows(f"checkpoints/{name}/quarantine", "body", "reason")
    return {bytes(row.body): row.reason for row in rows}


def test_json_with_a_schema_is_decoded_or_quarantined(place: Place) -> None:
    topic = place.topic()
    bad = {
        b"\xff\xfe": "the body is not UTF-8 text",
        b"nope": "the body is not JSON",
        b"[1, 2]": "the body is not a JSON object",
        b'{"city": "x", "amount": "x"}': "schema: amount is not of type decimal(18,2)",
        b'{"amount": 5}': "does not match the schema: city is missing",
        b'{"city": "x", "amount": 1}{"city": "y", "amount": 2}': "more than one JSON value",
        b'{"city": "x"}, {"city": "y"}': "more than one JSON value",
        b'{"city": "x"}] [{"city": "y"}': "more than one JSON value",
        b'{"city": "x"} done': "more than one JSON value, or text after it",
        b"{'city': 'x'}": "is not strict JSON: it repeats a name, or has single quotes",
        b'{"city": "x", "city": "y"}': "is not strict JSON: it repeats a name",
        b'{"city": "x", "amount": 6.005}': "amount has more digits than decimal(18,2) holds",
        b'{"city": "x", "amount": 12345678901234567.5}': "amount",
        "{'city': '大连'}".encode("gbk"): "the body is not UTF-8 text",
    }
    place.send(topic, [{"city": "北京", "amount": 1.25, "more": 1}, {"city": "长春"}])
    place.send(topic, list(bad))
    text = 'decode: {format: json, schema: "city STRING NOT NULL, amount DECIMAL(18,2)"}\n'
    place.run(place.pipeline(f"name: given\n{text}{SINK}", topic))
    rows = place.rows("out", "body.city", "body.amount", "topic")
    assert {(r.city, r.amount) for r in rows} == {("北京", Decimal("1.25")), ("长春", None)}
    found = quarantined(place, "given")
    assert found.keys() == bad.keys()
    for body, reason in bad.items():
        assert reason in found[body]


def test_json_numbers_are_rounded_only_on_request(place: Place) -> None:
    topic = place.topic()
    place.send(topic, [b'{"amount": 6.005, "parts": [{"price": 0.125}]}', b'{"amount": 6.1}'])
    decode = (
        'decode: {format: json, rounding: true, schema: "amount DECIMAL(18,2), '
        'parts ARRAY<STRUCT<price: DECIMAL(9,2)>>"}\n'
    )
    place.run(place.pipeline(f"name: rounded\n{decode}{SINK}", topic))
    rows = place.rows("out", "body.amount", "body.parts.price")
    assert {row.amount for row in rows} == {Decimal("6.01"), Decimal("6.10")}
    exact = decode.replace("rounding: true, ", "") + SINK.replace("out", "exact")
    place.run(place.pipeline(f"name: exact\n{exact}", topic))
    assert [row.amount for row in place.rows("exact", "body.amount")] == [Decimal("6.10")]
    (reason,) = quarantined(place, "exact").values()
    assert "amount has more digits than decimal(18,2) holds" in reason
    assert "parts has more digits than array<struct<price:decimal(9,2)>> holds" in reason


@pytest.mark.parametrize("charset", ["gbk", "GB18030"])
def test_json_in_another_charset_is_decoded(place: Place, charset: str) -> None:
    topic = place.topic()
    place.send(topic, ['{"city": "大连"}'.encode(charset), b'{"city": "\x80\xff"}'])
    decode = f"decode: {{format: json, charset: {charset}, schema: city STRING}}\n"
    place.run(place.pipeline(f"name: chinese\n{decode}{SINK}", topic))
    assert [row.city for row in place.rows("out", "body.city")] == ["大连"]
    (reason,) = quarantined(place, "chinese").values()
    assert reason == f"the body is not {charset.upper()} text"


def test_bodies_with_the_prefix_of_a_registry_are_decoded(place: Place) -> None:
    topic = place.topic()
    place.send(topic, [b'\x00\x00\x00\x00\x07{"city": "Ulm"}', b'{"city": "Bonn"}'])
    decode = "decode: {format: json, framing: confluent, schema: city STRING}\n"
    place.run(place.pipeline(f"name: framed\n{decode}{SINK}", topic))
    assert [row.city for row in place.rows("out", "body.city")] == ["Ulm"]
    (reason,) = quarantined(place, "framed").values()
    assert reason == "the body has no prefix of a schema registry"


def test_inferred_json_schema_gains_columns(place: Place) -> None:
    """A new field becomes a column at the next start; it is null in older rows."""
    topic = place.topic()
    pipeline = place.pipeline(f"name: learnt\ndecode: {{format: json}}\n{SINK}", topic)
    place.send(topic, [{"id": 1, "at": {"x": 1}}, "no JSON"])
    place.run(pipeline)
    place.send(topic, [{"id": 2, "name": "two", "at": {"x": 2, "y": 3}}])
    place.run(pipeline)
    rows = place.rows("out", "body.id", "body.name", "body.at.x", "body.at.y")
    assert sorted((r.id, r.name, r.x, r.y) for r in rows) == [(1, None, 1, None), (2, "two", 2, 3)]
    assert quarantined(place, "learnt") == {b"no JSON": "the body is not JSON"}
    place.send(topic, [{"id": "three"}] * 2000)
    with pytest.raises(PipelineError, match="column id of the table is bigint"):
        place.run(pipeline)


def test_json_schema_inference_without_samples_is_an_error(place: Place) -> None:
    topic = place.topic()
    with pytest.raises(PipelineError, match="the topic has no JSON object to infer it from"):
        place.run(place.pipeline(f"decode: {{format: json}}\n{SINK}", topic))
    with pytest.raises(PipelineError, match="columns as in CREATE TABLE"):
        place.run(place.pipeline(f"decode: {{format: json, schema: ((}}\n{SINK}", topic))


def test_text_is_decoded_or_quarantined(place: Place) -> None:
    topic = place.topic()
    place.send(topic, ["two apples", b"\xff"])
    place.run(place.pipeline(f"name: text\ndecode: {{format: text}}\n{SINK}", topic))
    assert [row.body for row in place.rows("out")] == ["two apples"]
    assert quarantined(place, "text") == {b"\xff": "the body is not UTF-8 text"}


AVRO = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["PAID", "OPEN"]}},
        {"name": "items", "type": {"type": "array", "items": "int"}},
        {"name": "notes", "type": {"type": "map", "values": "string"}},
    ],
}


def test_avro_is_decoded_or_quarantined(place: Place) -> None:
    fastavro: Any = import_module("fastavro")
    (place.directory / "payment.avsc").write_text(json.dumps(AVRO))

    def encoded(value: dict[str, Any]) -> bytes:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(AVRO), value)
        return file.getvalue()

    value = {
        "city": "北京",
        "amount": 1.5,
        "at": 1_700_000_000_000,
        "state": "PAID",
        "items": [1, 2],
        "notes": {"a": "b"},
    }
    good = encoded(value)
    header = b"\xc3\x01" + bytes(8)
    topic = place.topic()
    place.send(topic, [good, header + encoded(value | {"amount": None}), good[:-3], good + b"x"])
    text = f"name: avro\ndecode: {{format: avro, schema: payment.avsc}}\n{SINK}"
    place.run(place.pipeline(text, topic))
    rows = place.rows("out", "body.*")
    assert {row.amount for row in rows} == {1.5, None}
    (row,) = [row for row in rows if row.amount]
    assert (row.city, row.state, row["items"], row.notes) == ("北京", "PAID", [1, 2], {"a": "b"})
    assert row.at.timestamp() == pytest.approx(1_700_000_000)
    assert quarantined(place, "avro").keys() == {good[:-3], good + b"x"}
    framed = place.topic()
    place.send(framed, [b"\x00\x00\x00\x00\x09" + good, b"\x07" + good])
    place.run(
        place.pipeline(
            text.replace("avsc}", "avsc, framing: confluent}").replace("out", "framed"), framed
        )
    )
    assert [row.city for row in place.rows("framed", "body.city")] == ["北京"]
    with pytest.raises(PipelineError, match=r"other\.avsc cannot be read"):
        place.run(place.pipeline(text.replace("payment", "other"), topic))


def test_protobuf_is_decoded_or_quarantined(place: Place) -> None:
    payment, data = protobuf_message()
    (place.directory / "payment.desc").write_bytes(data)
    value = payment(city="北京", amount=150, tags=["a", "b"], state=1)
    value.at.FromSeconds(1_700_000_000)
    value.notes["a"] = 7
    topic = place.topic()
    place.send(topic, [value.SerializeToString(), b"\x0a\xff"])
    text = (
        "name: proto\ndecode: {format: protobuf, descriptor: payment.desc, message: shop.Payment}\n"
        + SINK
    )
    place.run(place.pipeline(text, topic))
    (row,) = place.rows("out", "body.*")
    assert (row.city, row.amount, row.tags, row.state) == ("北京", 150, ["a", "b"], "PAID")
    assert (row.notes, row.inner) == ({"a": 7}, None)
    assert row.at.timestamp() == pytest.approx(1_700_000_000)
    assert quarantined(place, "proto").keys() == {b"\x0a\xff"}
    framed = place.topic()
    serialized = value.SerializeToString()
    prefix = b"\x00\x00\x00\x00\x09"
    place.send(framed, [prefix + b"\x00" + serialized, prefix + b"\x02\x00" + serialized, prefix])
    place.run(
        place.pipeline(
            text.replace("Payment}", "Payment, framing: confluent}").replace("out", "framed"),
            framed,
        )
    )
    assert [row.city for row in place.rows("framed", "body.city")] == ["北京"] * 2
    with pytest.raises(PipelineError, match=r"has no message 'shop\.Nothing'"):
        place.run(place.pipeline(text.replace("shop.Payment", "shop.Nothing"), topic))


def protobuf_message() -> tuple[Any, bytes]:
    """Return a message class, and the descriptor set that `protoc` would write for it."""
    descriptors: Any = import_module("google.protobuf.descriptor_pb2")
    times: Any = import_module("google.protobuf.timestamp_pb2")
    pools: Any = import_module("google.protobuf.descriptor_pool")
    factory: Any = import_module("google.protobuf.message_factory")
    file = descriptors.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)
    message = file.message_type.add(name="Payment")
    kinds = descriptors.FieldDescriptorProto
    message.field.add(name="city", number=1, type=kinds.TYPE_STRING, label=1)
    message.field.add(name="amount", number=2, type=kinds.TYPE_INT64, label=1)
    message.field.add(name="tags", number=3, type=kinds.TYPE_STRING, label=3)
    message.field.add(
        name="state", number=4, type=kinds.TYPE_ENUM, label=1, type_name=".shop.State"
    )
    message.field.add(
        name="at",
        number=5,
        type=kinds.TYPE_MESSAGE,
        label=1,
        type_name=".google.protobuf.Timestamp",
    )
    entry = message.nested_type.add(name="NotesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=1)
    message.field.add(
        name="notes",
        number=6,
        type=kinds.TYPE_MESSAGE,
        label=3,
        type_name=".shop.Payment.NotesEntry",
    )
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=kinds.TYPE_INT32, label=1)
    message.field.add(
        name="inner", number=7, type=kinds.TYPE_MESSAGE, label=1, type_name=".shop.Inner"
    )
    stamp = descriptors.FileDescriptorProto()
    times.DESCRIPTOR.CopyToProto(stamp)
    pool = pools.DescriptorPool()
    pool.Add(stamp)
    pool.Add(file)
    made = factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))
    return made, descriptors.FileDescriptorSet(file=[stamp, file]).SerializeToString()


def test_invalid_descriptor_file_is_an_error(place: Place, tmp_path: Path) -> None:
    (tmp_path / "x.desc").write_bytes(b"\xff\xff")
    text = f"decode: {{format: protobuf, descriptor: x.desc, message: a.B}}\n{SINK}"
    with pytest.raises(PipelineError, match="is not a descriptor set"):
        place.run(place.pipeline(text, place.topic()))
