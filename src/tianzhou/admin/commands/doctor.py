"""`tianzhou doctor`: diagnose why a send or a consumer does not work."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import ExitCode
from tianzhou.admin.commands.session import Session, asking

if TYPE_CHECKING:
    from rich.text import Text

    from tianzhou.admin.doctor.findings import Finding

_STYLES: Final = {"problem": "bold red", "warning": "yellow", "fine": "green"}


@click.command()
@click.option("-t", "--topic", help="Diagnose a topic that cannot be written or read.")
@click.option("-g", "--group", help="Diagnose this group; default: all groups.")
@click.option(
    "--observe",
    "observe_s",
    type=click.FloatRange(min=0),
    default=6.0,
    show_default=True,
    metavar="SECONDS",
    help="Observe groups for SECONDS; consumers commit every 5 seconds.",
)
@asking
def doctor(session: Session, topic: str | None, group: str | None, observe_s: float) -> None:
    """Diagnose why a send or a consumer does not work, and suggest fixes.

    Exits with code 6 if there is a problem.
    """
    from tianzhou.admin.doctor.examination import Complaint, examine

    clock = click.get_current_context().find_root().obj
    complaint = Complaint(
        nameserver=session.nameserver, topic=topic, group=group, observe_s=observe_s
    )
    found: list[dict[str, Any]] = []
    console = output.console()
    with session.busy("examining"):
        for finding in examine(complaint, clock.now_ms):
            found.append(asdict(finding) | {"level": finding.level.value})
            if not session.as_json:
                console.print(_text(finding))
    problems = sum(row["level"] == "problem" for row in found)
    if session.as_json:
        output.echo_json({"problems": problems, "findings": found})
    else:
        warnings = sum(row["level"] == "warning" for row in found)
        click.echo(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    if problems:
        raise SystemExit(ExitCode.UNWELL)


def _count(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _text(finding: "Finding") -> "Text":
    from rich.text import Text

    level = finding.level.value
    said = output.plain(f"{finding.about}: {finding.said}")
    text = Text.assemble((f"{level:8}", _STYLES[level]), said)
    if finding.fix:
        text.append("\n" + " " * 8 + "→ " + output.plain(finding.fix), style="dim")
    return text
