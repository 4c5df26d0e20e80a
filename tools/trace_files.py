"""Which functions of Tianzhou one call executes.

    python tools/trace_files.py topic list -n 127.0.0.1:9876

Prints `file:function` for every function that the command executes, in the order of their first
call, and the number of files. Code that runs at import time is not counted.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

SOURCE: Final = f"{Path(__file__).resolve().parent.parent}/src/tianzhou/"


def trace(call: Callable[[], object]) -> list[str]:
    """Run `call` and return the functions of Tianzhou that it executes, in all threads that it
    starts, as `file:function` in the order of their first call."""
    found: dict[str, None] = {}

    def record(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        if not _is_import(frame):
            found[f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname}"] = None

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)


def _is_import(frame: FrameType) -> bool:
    """Return whether a module, or the body of a class, is on the stack of our frames: then the
    function is called by an import."""
    found: FrameType | None = frame
    while found is not None:
        if found.f_code.co_filename.startswith("<frozen importlib"):
            return True
        found = found.f_back
    return False


def files(functions: list[str]) -> list[str]:
    """Return the distinct files of the result of `trace`."""
    return sorted({function.partition(":")[0] for function in functions})


def main() -> None:
    from tianzhou.cmd.commands import cli

    functions = trace(lambda: cli(sys.argv[1:], prog_name="tianzhou", standalone_mode=False))
    print("\n".join(functions))
    print(f"{len(files(functions))} files, {len(functions)} functions")


if __name__ == "__main__":
    main()
