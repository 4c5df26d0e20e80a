"""Findings of the doctor: a sentence about a subject, and the command that fixes the problem."""

from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.client.core import findings as core
from tianzhou.client.core.findings import Level


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    """NameServer, broker, topic or group, with its name."""
    said: str
    fix: str = ""
    """The command to run, or another remedy."""


def problem(about: str, said: str, fix: str) -> Finding:
    return Finding(Level.PROBLEM, about, said, fix)


def warning(about: str, said: str, fix: str) -> Finding:
    return Finding(Level.WARNING, about, said, fix)


def fine(about: str, said: str) -> Finding:
    return Finding(Level.FINE, about, said)


def from_view(found: core.Finding, *, is_problem: bool = False) -> Finding:
    """Convert a finding of the dashboard; it is always a problem if the user asked about its
    subject."""
    about = found.name if found.about == "cluster" else f"{found.about} {found.name}"
    level = Level.PROBLEM if is_problem else found.level
    return Finding(level, about, found.said, found.remedy)


_ORDER = {Level.PROBLEM: 0, Level.WARNING: 1, Level.FINE: 2}


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Merge the findings about one subject: the worst level and its remedy. A sentence that is a
    prefix of another one is left out."""
    rows = sorted(found, key=lambda finding: _ORDER[finding.level])
    if len(rows) < 2:
        return rows
    said = list(dict.fromkeys(row.said for row in rows))
    kept = [one for one in said if not any(o != one and o.startswith(one) for o in said)]
    return [Finding(rows[0].level, rows[0].about, "; ".join(kept), rows[0].fix)]
