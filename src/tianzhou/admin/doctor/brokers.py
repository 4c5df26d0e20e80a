"""Diagnose brokers that respond: whether they accept messages, disks, clocks, versions."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tianzhou.admin.doctor.findings import Finding, problem, warning
from tianzhou.client.core.admin_results import BrokerStatus
from tianzhou.client.core.views import marks_text, skew_text

SKEW_MAX_S: Final = 5.0
"""Scheduled messages, retention and lag in seconds are off by the difference of clocks."""
_RUNTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_WRITE: Final = 2


def broker_findings(
    status: BrokerStatus, config: Mapping[str, str], now_ms: int
) -> Iterable[Finding]:
    about = f"broker {status.name}"
    if status.refusal:
        fix = f"free disk space; then: tianzhou broker status {status.name}"
        yield problem(about, f"it accepts no messages: {status.refusal}", fix)
    if not status.is_active:
        said = "its store has failed; it serves no requests"
        yield problem(about, said, "stop it, then: tianzhou store verify DIR")
    if not int(config.get("brokerPermission", "6")) & _WRITE:
        said = "it is being drained: producers must send elsewhere"
        yield problem(about, said, f"tianzhou broker drain {status.name} --undo")
    if not status.refusal:
        yield from disk_findings(status, config)
    yield from clock_findings(status, now_ms)


def disk_findings(status: BrokerStatus, config: Mapping[str, str]) -> Iterable[Finding]:
    """The limits are settings: percentages or ratios."""
    used, about = status.disk_used_ratio, f"broker {status.name}"
    fix = f"free disk space, or shorten retention: tianzhou broker config {status.name} --like disk"
    refuse = _mark(config, "diskSpaceWarningLevelRatio", 0.90)
    clean = _mark(config, "diskMaxUsedSpaceRatio", 0.75)
    if used > refuse:
        yield problem(about, marks_text(used, clean=clean, refuse=refuse), fix)
    elif used > clean:
        yield warning(about, marks_text(used, clean=clean, refuse=refuse), fix)


def _mark(config: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(config.get(name, default))
    except ValueError:
        return default
    return value / 100 if value > 1 else value


def clock_findings(status: BrokerStatus, now_ms: int) -> Iterable[Finding]:
    """A broker reports its start time and uptime, both by its own clock."""
    found = _RUNTIME.search(status.facts.get("runtime", ""))
    if found is None or not status.started_ms:
        return
    days, hours, minutes, seconds = map(int, found.groups())
    ran_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    skew_s = status.started_ms / 1000 + ran_s - now_ms / 1000
    if abs(skew_s) > SKEW_MAX_S:
        fix = "timedatectl set-ntp true, on both machines"
        yield warning(f"broker {status.name}", skew_text(skew_s), fix)


def version_findings(statuses: Iterable[BrokerStatus]) -> Iterable[Finding]:
    versions: dict[str, list[str]] = {}
    for status in statuses:
        told = status.facts.get("tianzhouVersion", "")
        name = f"{status.version}{f' (Tianzhou {told})' if told else ''}"
        versions.setdefault(name, []).append(status.name)
    if len(versions) > 1:
        told = "; ".join(f"{name}: {', '.join(brokers)}" for name, brokers in versions.items())
        yield warning("versions", f"brokers differ: {told}", "finish the upgrade: tianzhou cluster")
