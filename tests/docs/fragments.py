"""Examples that are a few lines of a program, and what has to stand around them."""

import textwrap
from typing import Final

from docs.pages import NAMESERVER

_AROUND: Final = """
import asyncio
from tianzhou.client import Message, Producer

async def main() -> None:
    async with Producer("fragments", nameserver="{address}") as producer:
{body}
"""


def is_program(code: str) -> bool:
    """Whether it can stand alone: nothing waits outside of a function."""
    try:
        compile(code, "example", "exec")
    except SyntaxError as error:
        return "outside" not in str(error)
    return True


def whole(code: str) -> str:
    """The example as a program of its own; a fragment becomes a function `main` with a producer."""
    if is_program(code):
        return code
    return _AROUND.format(address=NAMESERVER, body=textwrap.indent(code, " " * 8))
