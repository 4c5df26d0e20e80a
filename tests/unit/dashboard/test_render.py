"""Times as pages show them without a script."""

from tianzhou.dashboard.render import exact_text, moment_text

AT_MS = 1_794_817_800_007


def test_moment_has_date_and_zone() -> None:
    assert moment_text(AT_MS) == "2026-11-16 08:30:00 UTC"
    assert moment_text(0) == "never"


def test_exact_moment_has_milliseconds() -> None:
    assert exact_text(AT_MS) == "2026-11-16 08:30:00.007 UTC"
    assert exact_text(0) == "never"
