"""The body of a message, as people read it: JSON with its lines, plain text, or bytes."""

import json
from dataclasses import dataclass
from typing import Final

SHOWN_MAX: Final = 64 * 1024
"""Bytes of a body that a page shows; the rest can be downloaded."""
ROW_BYTES: Final = 16
PREVIEW_CHARS: Final = 120


@dataclass(frozen=True, slots=True)
class Payload:
    size: int
    is_cut: bool
    json: str | None
    """None: it is not JSON, or was truncated."""
    text: str | None
    """None: it is not text."""
    hex: str

    @property
    def kind(self) -> str:
        return "json" if self.json is not None else "text" if self.text is not None else "hex"


def payload_of(body: bytes) -> Payload:
    shown, is_cut = body[:SHOWN_MAX], len(body) > SHOWN_MAX
    text = text_of(shown, is_cut=is_cut)
    pretty = None if is_cut or text is None else _pretty(text)
    return Payload(len(body), is_cut, pretty, text, _dump(shown))


def text_of(body: bytes, *, is_cut: bool = False) -> str | None:
    """None when it is not UTF-8, or has control characters that no text has."""
    try:
        # A cut may go through the middle of a character.
        text = body.decode("utf-8", "ignore" if is_cut else "strict")
    except UnicodeDecodeError:
        return None
    if any(char < " " and char not in "\t\n\r" for char in text):
        return None
    return text


def _pretty(text: str) -> str | None:
    """Only of objects and lists: a number is as readable as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _dump(body: bytes) -> str:
    """Offset, bytes, characters, as hexdump shows them."""
    lines: list[str] = []
    for at in range(0, len(body), ROW_BYTES):
        row = body[at : at + ROW_BYTES]
        chars = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{ROW_BYTES * 3 - 1}}  {chars}")
    return "\n".join(lines)


def preview(body: bytes) -> str:
    """One line of a list."""
    text = text_of(body[:SHOWN_MAX], is_cut=len(body) > SHOWN_MAX)
    if text is None:
        return body[: PREVIEW_CHARS // 3].hex(" ")
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_CHARS else line[: PREVIEW_CHARS - 1] + "…"
