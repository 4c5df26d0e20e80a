import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tianzhou.cmd.logs import JsonFormatter, TextFormatter, say, set_up


def record(event: str, *arguments: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("tianzhou", logging.WARNING, "file", 1, event, arguments, None)
    vars(made).update(fields)
    return made


def failing() -> logging.LogRecord:
    made = record("disk.failed")
    try:
        Path("/nowhere").read_bytes()
    except OSError:
        made.exc_info = sys.exc_info()
    return made


@pytest.fixture
def quiet_root() -> Iterator[None]:
    """`set_up` replaces the handlers of the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_text_log_has_time_level_event_and_fields() -> None:
    line = TextFormatter().format(record("client.%s", "gone", client="c1", count=3))
    time, _, rest = line.partition(" WARNING ")
    assert len(time) == len("2023-11-14 22:13:20,000")
    assert rest == "client.gone client=c1 count=3"


def test_text_log_escapes_untrusted_values() -> None:
    line = TextFormatter().format(record("topic.refused", topic="a\nERROR b\x1b[31m", name2="é"))
    assert line.endswith(r" topic=a\nERROR b\x1b[31m name2=\xe9")
    assert "\n" not in line


def test_text_log_truncates_long_values() -> None:
    line = TextFormatter().format(record("e", text="x" * 1000, number=10**300))
    text, number = line.partition(" text=")[2].split(" number=")
    assert (len(text), len(number)) == (256, 256)


def test_text_log_indents_the_lines_of_an_exception() -> None:
    first, *rest = TextFormatter().format(failing()).splitlines()
    assert first.endswith("disk.failed")
    assert rest[0] == "    Traceback (most recent call last):"
    assert "No such file or directory: '/nowhere'" in rest[-1]
    assert all(line.startswith("    ") for line in rest), "they are no entries of the log"


def test_json_log_is_one_line_with_every_field() -> None:
    text = JsonFormatter().format(record("client.gone", client="é\n", count=3))
    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("time")[10] == "T"
    assert line == {
        "level": "WARNING",
        "event": "client.gone",
        "client": r"\xe9\n",
        "count": "3",
    }


def test_json_log_keeps_an_exception_in_the_line() -> None:
    text = JsonFormatter().format(failing())
    assert "\n" not in text
    assert json.loads(text)["trace"].endswith("No such file or directory: '/nowhere'")


@pytest.mark.usefixtures("quiet_root")
@pytest.mark.parametrize("as_json", [False, True])
def test_logs_go_to_the_error_stream(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    set_up(as_json=as_json)
    logging.getLogger("tianzhou.test").info("server.started", extra={"port": 1})
    logging.getLogger("tianzhou.test").debug("not shown")
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    if as_json:
        assert json.loads(line)["event"] == "server.started"
    else:
        assert line.endswith("INFO    server.started port=1")


@pytest.mark.usefixtures("quiet_root")
def test_say_prints_text_or_logs_a_json_event(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up(as_json=False)
    say("Broker h:1", "server.ready")
    assert capsys.readouterr() == ("", "Broker h:1\n")
    set_up(as_json=True)
    say("Broker h:1", "server.ready", level=logging.WARNING)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["text"]) == (
        "server.ready",
        "WARNING",
        "Broker h:1",
    )
