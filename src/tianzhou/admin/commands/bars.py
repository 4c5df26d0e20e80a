"""Bars for what takes longer than a moment, on the error stream."""

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final

from tianzhou.admin.commands import output

if TYPE_CHECKING:
    from rich.progress import Progress

BAR_AFTER_S: Final = 1.0


class Tell:
    """A bar that comes when the work takes longer than a moment."""

    def __init__(self, total: int | None, what: str) -> None:
        self._begun_s = monotonic()
        self._total = total
        self._what = what
        self._bar: Progress | None = None

    def __call__(self, done: int) -> None:
        if self._bar is None and monotonic() - self._begun_s > BAR_AFTER_S:
            self._bar = self._started()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)

    def _started(self) -> "Progress":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn(self._what), BarColumn(), MofNCompleteColumn())
        bar = Progress(*columns, console=output.console(err=True), transient=True)
        bar.add_task(self._what, total=self._total)
        bar.start()
        return bar

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress_bar(total: int | None, what: str) -> Generator[Tell]:
    tell = Tell(total, what)
    try:
        yield tell
    finally:
        tell.stop()
