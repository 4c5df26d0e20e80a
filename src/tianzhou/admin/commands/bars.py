"""Progress bars for long operations, on the error stream of a terminal."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final

from tianzhou.admin.commands import output

if TYPE_CHECKING:
    from rich.progress import Progress

BAR_AFTER_S: Final = 1.0


class Tell:
    """A progress bar that appears once the work has taken longer than `BAR_AFTER_S`."""

    def __init__(self, total: int | None, what: str, *, in_bytes: bool) -> None:
        self._begun_s = monotonic()
        self._total = total
        self._what = what
        self._in_bytes = in_bytes
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int | None = None) -> None:
        if self._bar is None and self._is_wanted():
            self._bar = self._started()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total or self._total)

    def _is_wanted(self) -> bool:
        return monotonic() - self._begun_s > BAR_AFTER_S and sys.stderr.isatty()

    def _started(self) -> "Progress":
        from rich import progress

        columns = (progress.TextColumn(self._what), progress.BarColumn())
        if self._in_bytes:
            columns += (
                progress.TextColumn("{task.percentage:>3.0f} %"),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
            )
        else:
            columns += (progress.MofNCompleteColumn(),)
        bar = progress.Progress(*columns, console=output.console(err=True), transient=True)
        bar.add_task(self._what, total=self._total)
        bar.start()
        return bar

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress_bar(total: int | None, what: str, *, in_bytes: bool = False) -> Generator[Tell]:
    tell = Tell(total, what, in_bytes=in_bytes)
    try:
        yield tell
    finally:
        tell.stop()
