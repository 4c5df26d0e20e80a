"""Brokers that answer: whether they take messages, their disks, clocks and versions."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tianzhou.admin.doctor.findings import Finding, problem, warning
from tianzhou.client.core.admin_results import BrokerStatus
from tianzhou.client.core.views import marks_text, skew_text

SKEW_MAX_S: Final = 5.0
"""Timed messages, retention and lag in seconds are wrong by what clocks differ."""
_RUNTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_WRITE: Final = 2


def broker_findings(
    status: BrokerStatus, config: Mapping[str, str], now_ms: int
) -> Iterable[Finding]:
    about = f"broker {status.name}"
    if status.refusal:
        mend = f"make room on its disk; then: tianzhou broker status {status.name}"
        yield problem(about, f"it takes no messages: {status.refusal}", mend)
    if not status.is_active:
        said = "its store is broken, it serves nothing"
        yield problem(about, said, "tianzhou store verify DIR, after it was stopped")
    if not int(config.get("brokerPermission", "6")) & _WRITE:
        said = "it is being drained: producers must send elsewhere"
        yield problem(about, said, f"tianzhou broker drain {status.name} --undo")
    if not status.refusal:
        yield from disk_findings(status, config)
    yield from clock_findings(status, now_ms)


def disk_findings(status: BrokerStatus, config: Mapping[str, str]) -> Iterable[Finding]:
    """The marks stand in the settings: percents or shares."""
    used, about = status.disk_used_ratio, f"broker {status.name}"
    mend = f"make room, or keep messages shorter: tianzhou broker config {status.name} --like disk"
    refuse = _mark(config, "diskSpaceWarningLevelRatio", 0.90)
    clean = _mark(config, "diskMaxUsedSpaceRatio", 0.75)
    if used > refuse:
        yield problem(about, marks_text(used, clean=clean, refuse=refuse), mend)
    elif used > clean:
        yield warning(about, marks_text(used, clean=clean, refuse=refuse), mend)


def _mark(config: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(config.get(name, default))
    except ValueError:
        return default
    return value / 100 if value > 1 else value


def clock_findings(status: BrokerStatus, now_ms: int) -> Iterable[Finding]:
    """A broker tells when it began and for how long it has run, both by its own clock."""
    found = _RUNTIME.search(status.facts.get("runtime", ""))
    if found is None or not status.started_ms:
        return
    days, hours, minutes, seconds = map(int, found.groups())
    ran_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    skew_s = status.started_ms / 1000 + ran_s - now_ms / 1000
    if abs(skew_s) > SKEW_MAX_S:
        mend = "timedatectl set-ntp true, on both machines"
        yield warning(f"broker {status.name}", skew_text(skew_s), mend)


def version_findings(statuses: Iterable[BrokerStatus]) -> Iterable[Finding]:
    versions: dict[str, list[str]] = {}
    for status in statuses:
        told = status.facts.get("tianzhouVersion", "")
        name = f"{status.version}{f' (Tianzhou {told})' if told else ''}"
        versions.setdefault(name, []).append(status.name)
    if len(versions) > 1:
        told = "; ".join(f"{name}: {', '.join(brokers)}" for name, brokers in versions.items())
        yield warning("versions", f"brokers differ: {told}", "finish the upgrade: tianzhou cluster")
