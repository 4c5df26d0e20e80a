"""Logs of a server: to the error stream or files, rate-limited, as text or JSON lines."""

import json
import logging
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

import click

from tianzhou.net.log_guard import RateLimit, one_entry

_KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CHARS_MAX: Final = 256
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
FILES_KEPT: Final = 5
"""Rotated files besides the current one: logs never exceed 96 MiB."""


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """The fields of the event, escaped for printing."""
    return {
        name: ascii(value)[1:-1][:_CHARS_MAX] if isinstance(value, str) else str(value)[:_CHARS_MAX]
        for name, value in vars(record).items()
        if name not in _KNOWN
    }


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={value}" for name, value in _fields(record).items())
        said = one_entry(record.getMessage())
        text = f"{self.formatTime(record)} {record.levelname:7} {said}{pairs}"
        if record.exc_info:
            text += one_entry("\n" + self.formatException(record.exc_info))
        return text


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the logging options."""
    file = click.Path(dir_okay=False, path_type=Path)
    help_ = (
        f"Log to this file instead of the error stream. Rotates at {FILE_BYTES_MAX >> 20} MiB and "
        f"keeps {FILES_KEPT} old files."
    )
    command = click.option("--log-file", type=file, help=help_)(command)
    return click.option("--log-json", is_flag=True, help="Log as JSON lines.")(command)


def say(text: str, event: str, *, level: int = logging.INFO) -> None:
    """Print a sentence on the error stream, or log an event if the log is JSON."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.root.handlers):
        logging.getLogger("tianzhou").log(level, event, extra={"text": text})
    else:
        click.echo(text, err=True)


def set_up(*, as_json: bool, file: Path | None = None, level: int = logging.INFO) -> None:
    handler = (
        logging.StreamHandler(sys.stderr)
        if file is None
        else RotatingFileHandler(file, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT)
    )
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(RateLimit())
    logging.basicConfig(level=level, handlers=[handler], force=True)
