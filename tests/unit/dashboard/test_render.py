"""Templates, and times as pages show them without a script."""

import jinja2
import pytest

from tianzhou.dashboard.render import environment, exact_text, time_text

AT_MS = 1_794_817_800_007


def test_time_text_has_date_and_zone() -> None:
    assert time_text(AT_MS) == "2026-11-16 08:30:00 UTC"
    assert time_text(0) == "never"


def test_exact_text_has_milliseconds() -> None:
    assert exact_text(AT_MS) == "2026-11-16 08:30:00.007 UTC"
    assert exact_text(0) == "never"


def test_template_environment_has_compiled_every_template(monkeypatch: pytest.MonkeyPatch) -> None:
    made = environment()

    def refuse(_environment: jinja2.Environment, _source: str, name: str, *_: object) -> None:
        pytest.fail(f"{name} is compiled when a page is shown")

    monkeypatch.setattr(jinja2.Environment, "compile", refuse)
    assert len(made.list_templates()) > 20
    for name in made.list_templates():
        made.get_template(name)
