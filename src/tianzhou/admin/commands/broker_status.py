"""`tianzhou broker status`: the state of one broker."""

from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.session import Session, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from tianzhou.client.core.admin_results import BrokerStatus

_WRITE: Final = 2
_ALL: Final = "6"
_PARTS: Final = ("log", "queues", "index", "tables")
"""The parts of a store, each of which may have a disk of its own."""


def refusal_of(session: Session, status: "BrokerStatus") -> str:
    """Why the broker rejects messages; empty if it accepts them. Draining is a setting."""
    permission = session.admin.brokers.config(status.name).get("brokerPermission", _ALL)
    if not int(permission) & _WRITE:
        return f"drained; undo with: tianzhou broker drain {status.name} --undo"
    return status.refusal


def version_text(rocketmq: str | None, tianzhou: str | None) -> str:
    """Tianzhou's version and the RocketMQ version it implements; Apache's brokers have only the
    latter."""
    if rocketmq is None:
        return ""
    return f"{tianzhou} ({rocketmq})" if tianzhou else rocketmq


@click.command()
@click.argument("name", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Also show every value that the broker reports."
)
@watched
def status(session: Session, name: str | None, everything: bool) -> None:
    """Show the state of broker NAME."""

    def look() -> dict[str, Any]:
        return _facts(session, session.broker(name), everything=everything)

    session.show(look, _view)


def _facts(session: Session, name: str, *, everything: bool) -> dict[str, Any]:
    found = session.admin.brokers.status(name)
    producers = session.admin.brokers.producers(name)
    refusal = refusal_of(session, found)
    return {
        "broker": name,
        "address": found.address,
        "version": found.version,
        "tianzhou_version": found.facts.get("tianzhouVersion"),
        "started_ms": found.started_ms,
        "takes_messages": not refusal,
        "refusal": refusal,
        "sent_per_second": found.put_per_second,
        "read_per_second": found.get_per_second,
        "sent_today": found.put_today,
        "rejected_busy": int(found.facts.get("sendsRejectedBusy", 0)),
        "disk_used_ratio": found.disk_used_ratio,
        "part_disk_used_ratio": {
            part: float(found.facts[f"{part}DiskRatio"])
            for part in _PARTS
            if f"{part}DiskRatio" in found.facts
        },
        "producers": {group: len(clients) for group, clients in sorted(producers.items())},
        "alarms": _alarms(session, name),
        "facts": dict(found.facts) if everything else {},
    }


def _alarms(session: Session, name: str) -> list[dict[str, Any]]:
    """Alarms of every member of the group; empty for brokers without alarms, such as Apache's."""
    view = session.admin.views.cluster()
    return [
        {
            "id": broker_id,
            "address": address,
            "kind": alarm.kind,
            "level": "problem" if alarm.is_problem else "warning",
            "said": alarm.text,
            "fix": alarm.remedy,
            "since_ms": alarm.since_ms,
        }
        for place in view.places
        if place.name == name
        for broker_id, address in sorted(place.addresses.items())
        if address in view.members
        for alarm in view.members[address].alarms
    ]


def _alarm_lines(alarm: dict[str, Any]) -> "Iterator[RenderableType]":
    """Alarms in the format of the doctor's findings."""
    level, since = alarm["level"], output.time_text(alarm["since_ms"])
    replica = f"replica {alarm['id']} at {alarm['address']}: " if alarm["id"] else ""
    style = "bold red" if level == "problem" else "yellow"
    yield output.sentence(f"{level:8}{replica}{alarm['said']}, since {since}", style)
    yield output.sentence(f"        → {alarm['fix']}", "dim")


def _disk_used(ratio: float, by_part: dict[str, float]) -> str:
    """One figure for a store on one disk, else one for each part."""
    if len({f"{part:.0%}" for part in by_part.values()}) > 1:
        return ", ".join(f"{used:.0%} ({part})" for part, used in by_part.items())
    return "unknown" if ratio < 0 else f"{ratio:.0%}"


def _view(found: dict[str, Any]) -> "RenderableType":
    producers = ", ".join(f"{group} ({count})" for group, count in found["producers"].items())
    facts = {
        "broker": found["broker"],
        "address": found["address"],
        "version": version_text(found["version"], found["tianzhou_version"]),
        "started": output.time_text(found["started_ms"]),
        "messages": ("accepted" if found["takes_messages"] else f"rejected: {found['refusal']}"),
        "sent per second": found["sent_per_second"],
        "read per second": found["read_per_second"],
        "sent today": found["sent_today"],
        "rejected as busy": found["rejected_busy"],
        "disk used": _disk_used(found["disk_used_ratio"], found["part_disk_used_ratio"]),
        "producers": producers or "none",
        "alarms": len(found["alarms"]) or "none",
    }
    lines = [line for alarm in found["alarms"] for line in _alarm_lines(alarm)]
    return output.stack(output.pairs(facts | found["facts"]), *lines)
