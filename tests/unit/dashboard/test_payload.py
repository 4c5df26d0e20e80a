"""Bodies of messages as people read them."""

import pytest

from tianzhou.dashboard.payload import SHOWN_MAX, payload_of, preview, text_of


def test_payload_of_json_is_indented() -> None:
    shown = payload_of('{"b":[1,{"ü":null}],"a":"<x>"}'.encode())
    assert shown.kind == "json"
    assert shown.json == (
        '{\n  "b": [\n    1,\n    {\n      "ü": null\n    }\n  ],\n  "a": "<x>"\n}'
    )


@pytest.mark.parametrize("body", [b"{broken", b"12", b'"text"', b"plain", b"[" * 100_000])
def test_payload_that_is_not_json_is_text(body: bytes) -> None:
    shown = payload_of(body)
    assert (shown.kind, shown.json) == ("text", None)


@pytest.mark.parametrize("body", [b"\x00\x01", b"\xff\xfe", b"a\x1b[31mred"])
def test_payload_of_binary_data_is_hex(body: bytes) -> None:
    shown = payload_of(body)
    assert (shown.kind, shown.text) == ("hex", None)


def test_payload_hex_dump_has_offsets_bytes_and_characters() -> None:
    first, second = payload_of(bytes(range(60, 78)) + b"\x00").hex.splitlines()
    assert first.startswith("00000000  3c 3d 3e")
    assert first.endswith("  <=>?@ABCDEFGHIJK")
    assert second == f"{'00000010  4c 4d 00':<57}  LM·"


def test_payload_of_a_large_body_is_truncated_and_marked() -> None:
    shown = payload_of("ü".encode() * SHOWN_MAX)
    assert (shown.is_cut, shown.size, shown.kind) == (True, 2 * SHOWN_MAX, "text")
    assert shown.json is None


def test_payload_of_an_empty_body_is_empty_text() -> None:
    assert (payload_of(b"").kind, payload_of(b"").hex) == ("text", "")


def test_preview_is_one_line() -> None:
    assert preview(b"two\n  lines\t here") == "two lines here"
    assert preview(b"x" * 1_000) == "x" * 119 + "…"
    assert preview(b"\x00\xff") == "00 ff"
    assert text_of(b"a\x07") is None
