"""Records which functions of the product run, in order: the evidence behind docs/paths.

An event is one entry into a function of `src/tianzhou` (the test kit excepted), in any thread of
this process: a call, or the resumption of a generator or coroutine. Import-time code does not
count: neither the bodies of modules nor those of classes.

`Recorder` records in this process. Child processes record too if their environment comes from
`environment_for`: Python imports the `sitecustomize` there, which calls `install_from_environment`.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

SOURCES: Final = str(Path(__file__).resolve().parent.parent / "src" / "tianzhou") + os.sep
KIT: Final = SOURCES + "testing" + os.sep
FOLDER_VARIABLE: Final = "TIANZHOU_TRACE_FOLDER"


class Event(NamedTuple):
    """One entry into a function."""

    time_ns: int
    """Monotonic, so that events of several processes can be ordered."""
    place: str
    """Process and thread; events of one place are ordered."""
    step: str
    """`file:function`, relative to src/tianzhou."""


def step_of(code: CodeType) -> str | None:
    """`file:function` if this is a function of the product; inner functions, lambdas and
    comprehensions count as the function that contains them."""
    name = code.co_filename
    if not name.startswith(SOURCES) or name.startswith(KIT) or not code.co_flags & CO_OPTIMIZED:
        return None
    outer = code.co_qualname.partition(".<locals>")[0]
    if outer.endswith(("<lambda>", "comp>", "<genexpr>")):
        outer = outer.rpartition("<")[0].rstrip(".") or "(module)"
    return f"{name.removeprefix(SOURCES)}:{outer}"


def _profiler(record: Callable[[str], None]) -> Callable[[FrameType, str, object], None]:
    steps: dict[CodeType, str | None] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in steps:
            steps[code] = step_of(code)
        step = steps[code]
        if step is not None:
            record(step)

    return profile


class Recorder:
    """Records the events of this process while a block of `recording` runs. Threads are seen if
    they start after `install`."""

    def __init__(self) -> None:
        self._events: list[Event] | None = None

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        profile = _profiler(self._record)
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextlib.contextmanager
    def recording(self) -> Generator[list[Event]]:
        events: list[Event] = []
        self._events = events
        try:
            yield events
        finally:
            self._events = None

    def _record(self, step: str) -> None:
        events = self._events
        if events is not None:
            place = f"{os.getpid()}/{threading.get_ident()}"
            events.append(Event(time.monotonic_ns(), place, step))


def environment_for(folder: Path) -> dict[str, str]:
    """The environment of a process that writes its events into `folder`."""
    (folder / "sitecustomize.py").write_text(
        "import path_tracer\n\npath_tracer.install_from_environment()\n"
    )
    here = str(Path(__file__).resolve().parent)
    inherited = [p for p in (os.environ.get("PYTHONPATH"),) if p]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), here, *inherited]),
        FOLDER_VARIABLE: str(folder),
    }


def install_from_environment() -> None:
    """Write every event of this process, and of those that it forks, to a file of its own."""
    folder = os.environ[FOLDER_VARIABLE]
    files: dict[int, int] = {}

    def record(step: str) -> None:
        process = os.getpid()
        if process not in files:
            files[process] = os.open(
                f"{folder}/{process}.events", os.O_WRONLY | os.O_CREAT | os.O_APPEND
            )
        line = f"{time.monotonic_ns()}\t{process}/{threading.get_ident()}\t{step}\n"
        os.write(files[process], line.encode())

    profile = _profiler(record)
    threading.setprofile(profile)
    sys.setprofile(profile)


def events_in(folder: Path, start_ns: int, end_ns: int) -> list[Event]:
    """The events that processes wrote between two times of `time.monotonic_ns`, in order."""
    events: list[Event] = []
    for file in folder.glob("*.events"):
        for line in file.read_text(encoding="utf-8").splitlines():
            time_ns, place, step = line.split("\t")
            if start_ns <= int(time_ns) <= end_ns:
                events.append(Event(int(time_ns), place, step))
    return sorted(events)
