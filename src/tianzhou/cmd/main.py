"""The entry point of the `tianzhou` command.

Only light modules are imported here: everything else is loaded by `main`, when Ctrl-C already ends
the process without a traceback.
"""

import os
import sys

from tianzhou.cmd import interrupts


def main() -> None:
    try:
        interrupts.install()
    except KeyboardInterrupt:
        sys.exit(interrupts.INTERRUPTED)
    _open_closed_streams()
    from tianzhou.admin.commands.failures import failure_of
    from tianzhou.cmd.commands import cli

    try:
        cli(prog_name="tianzhou")
    except OSError as error:  # help that could not be written; commands report errors themselves
        failure = failure_of(error)
        failure.show()
        sys.exit(failure.exit_code)
    finally:
        _discard_unwritable()


def _open_closed_streams() -> None:
    """Open the null device for standard streams that the caller has closed (`<&-`, `>&-`).

    Python sets them to None, which neither click nor rich expects. Besides, the next file or
    connection would get their descriptor, and with it any output that a library writes there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _discard_unwritable() -> None:
    """Send output that cannot be written (a full disk, a closed pipe) to the null device.

    Otherwise Python fails to write it again at its exit, reports that and exits with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
