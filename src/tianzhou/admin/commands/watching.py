"""`--watch`: refresh until Ctrl-C.

Only the first request must succeed. Later failures, for example while a server restarts, are
reported, and refreshing continues.
"""

import sys
from collections.abc import Callable
from time import sleep
from typing import TYPE_CHECKING, TypeVar

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import failure_of
from tianzhou.base.errors import TianzhouError

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")


def print_again(look: Callable[[], T], show: Callable[[T], None], every_s: float) -> None:
    """Print each result after the previous one; failures go to the error stream."""
    show(look())

    def act() -> None:
        try:
            found = look()
        except TianzhouError as error:
            failure_of(error).show()
        else:
            show(found)

    _repeat(act, every_s)


def draw_again(
    look: Callable[[], T], view: "Callable[[T], RenderableType]", every_s: float
) -> None:
    """Redraw in place on the terminal."""
    from rich.live import Live

    def current() -> "RenderableType":
        try:
            return view(look())
        except TianzhouError as error:
            return output.sentence(f"tianzhou: {failure_of(error).message}")

    with Live(view(look()), console=output.console(), auto_refresh=False) as live:
        _repeat(lambda: live.update(current(), refresh=True), every_s)


def _repeat(act: Callable[[], None], every_s: float) -> None:
    try:
        while True:
            sys.stdout.flush()
            sleep(every_s)
            act()
    except KeyboardInterrupt:
        return
