"""Health of the broker: liveness and readiness, alarms and metrics of the store and the ports.

A broker is alive if a restart would not help. It is ready if clients find it and it accepts their
messages; otherwise the response contains the reasons.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.metrics import Metric, Series, gauge, gauges, histogram
from tianzhou.broker.role import Permission
from tianzhou.net.admission import PROCESS_BUDGET, DescriptorBudget
from tianzhou.store.files import Usage
from tianzhou.store.incidents import Incident
from tianzhou.store.store import MessageStore, Watermarks
from tianzhou.wire import fastjson
from tianzhou.wire.names import PERM_READ, PERM_WRITE

OK = 200
UNAVAILABLE = 503

HttpResponse = tuple[int, bytes]
"""An HTTP status, and JSON."""
log: Final = logging.getLogger("tianzhou.broker")

DISPATCH_BEHIND_MAX: Final = 64 * 1024 * 1024
INCIDENTS_NAMED_MAX: Final = 3
INDEX_FILES_NAMED_MAX: Final = 3


@dataclass(slots=True)
class Health:
    """Responses for supervisors. Owner: the broker loop; any response proves that the loop runs."""

    name: str
    store: MessageStore
    permission: Permission
    unregistered: Callable[[], dict[str, str]]
    """NameServers that do not list this broker, with the reasons."""
    nameservers: Callable[[], int]
    alarms: Callable[[], list[Alarm]] = list
    """Conditions that an operator must see, whether or not they stop the broker from serving."""

    def live(self) -> HttpResponse:
        """`/healthz`"""
        return _response("alive", self._broken())

    def _broken(self) -> list[str]:
        return [f"{self.store.broken_reason}; {_BROKEN}"] if self.store.is_broken else []

    def ready(self) -> HttpResponse:
        """`/readyz`"""
        reasons = self._broken()
        if self.store.refusal:
            reasons.append(self.store.refusal)
        if not self.permission.bits & PERM_READ:
            command = f"tianzhou broker config {self.name} --set brokerPermission=6"
            reasons.append(f"the broker delivers no messages: {command}")
        if not self.permission.bits & PERM_WRITE:
            command = f"tianzhou broker drain {self.name} --undo"
            reasons.append(f"the broker accepts no messages, it is being drained: {command}")
        missing = self.unregistered()
        if missing and len(missing) == self.nameservers():
            causes = "; ".join(f"{server}: {reason}" for server, reason in missing.items())
            reasons.append(
                f"no NameServer knows this broker, so that clients do not find it: {causes}; "
                "check that they run: tianzhou doctor"
            )
        # Losses found at a start do not make a broker unready: waiting cannot restore the messages.
        alarms = [f"{alarm.text}; {alarm.remedy}" for alarm in self.alarms()]
        return _response("ready", reasons, {"alarms": alarms} if alarms else {})


_BROKEN = (
    "the disk failed, and nothing is stored any more; check it, then restart the broker; "
    "to check the files: tianzhou store verify"
)


def _response(
    state: str, reasons: list[str], more: dict[str, list[str]] | None = None
) -> HttpResponse:
    status = f"not {state}" if reasons else state
    body: dict[str, object] = {"status": status, "reasons": reasons, **(more or {})}
    return UNAVAILABLE if reasons else OK, fastjson.encode(body)


@dataclass(slots=True)
class StoreAlarms:
    """Alarms about the store, and about what this broker accepts. Owner: the broker loop."""

    name: str
    store: MessageStore
    permission: Permission
    since: Since

    def current(self) -> Iterator[Alarm]:
        yield from self._store()
        yield from self._incidents()
        yield from self._service()

    def _store(self) -> Iterator[Alarm]:
        store, began_ms = self.store, self.since.began_ms
        if since_ms := began_ms("store_broken", holds=store.is_broken):
            yield Alarm(
                kind="store_broken",
                text=f"its store is fenced and accepts no writes: {store.broken_reason}",
                remedy="check the disk and restart the broker; to check the files, stop it and "
                "run: tianzhou store verify DIR",
                since_ms=since_ms,
            )
        if since_ms := began_ms("writes_refused", holds=bool(store.refusal)):
            yield Alarm(
                kind="writes_refused",
                text=f"it accepts no messages: {store.refusal}",
                remedy="free the missing resource: the broker resumes by itself within seconds; "
                f"to check: tianzhou broker status {self.name}",
                since_ms=since_ms,
            )
        if since_ms := began_ms("records_damaged", holds=bool(store.damaged)):
            yield Alarm(
                kind="records_damaged",
                text=f"{len(store.damaged)} records are damaged and not delivered",
                remedy="stop the broker and find them: tianzhou store verify DIR",
                since_ms=since_ms,
            )

        damaged = store.index.damaged if store.index is not None else {}
        if since_ms := began_ms("index_damaged", holds=bool(damaged)):
            named = [f"{name} {why}" for name, why in sorted(damaged.items())]
            yield Alarm(
                kind="index_damaged",
                text=f"{len(damaged)} key index files are damaged, so queries by key miss "
                f"messages: {'; '.join(named[:INDEX_FILES_NAMED_MAX])}",
                remedy="stop the broker, delete its index directory and start it: it rebuilds the "
                "index from the log",
                since_ms=since_ms,
            )

    def _incidents(self) -> Iterator[Alarm]:
        """Findings of starts until they are acknowledged: one alarm for each kind."""
        incidents = self.store.incidents
        by_kind: dict[str, list[Incident]] = {}
        for incident in incidents.open:
            by_kind.setdefault(incident.kind, []).append(incident)
        for kind, found in by_kind.items():
            texts = [incident.text for incident in found[:INCIDENTS_NAMED_MAX]]
            more = len(found) - len(texts) + incidents.left_out
            yield Alarm(
                kind=kind,
                text="at a start: " + "; ".join(texts) + (f"; and {more} more" if more else ""),
                remedy="check the disk, and restore or resend lost messages; then: tianzhou "
                f"broker acknowledge {self.name}",
                since_ms=min(incident.found_ms for incident in found),
                is_problem=any(incident.is_loss for incident in found),
            )

    def _service(self) -> Iterator[Alarm]:
        bits, began_ms = self.permission.bits, self.since.began_ms
        if since_ms := began_ms("draining", holds=not bits & PERM_WRITE):
            yield Alarm(
                kind="draining",
                text="it is being drained: producers must send elsewhere",
                remedy=f"tianzhou broker drain {self.name} --undo",
                since_ms=since_ms,
                is_problem=False,
            )
        if since_ms := began_ms("reads_refused", holds=not bits & PERM_READ):
            yield Alarm(
                kind="reads_refused",
                text="it delivers no messages: its read permission was removed",
                remedy=f"tianzhou broker config {self.name} --set brokerPermission=6",
                since_ms=since_ms,
            )
        marks = self.store.watermarks
        behind = marks.appended - marks.dispatched
        if since_ms := began_ms("dispatch_behind", holds=behind > DISPATCH_BEHIND_MAX):
            yield Alarm(
                kind="dispatch_behind",
                text=f"{behind >> 20} MiB are stored and not visible to consumers yet",
                remedy="it catches up when producers send less",
                since_ms=since_ms,
                is_problem=False,
            )


@dataclass(slots=True)
class PortAlarms:
    """Alarms about ports of this process that cannot accept more connections. Owner: the broker
    loop."""

    broker: str
    since: Since
    budget: DescriptorBudget = PROCESS_BUDGET

    def current(self) -> Iterator[Alarm]:
        full = {f"{port.limits.name}_port_full": port for port in self.budget.full_ports()}
        self.since.keep(full)
        for kind, port in full.items():
            yield Alarm(
                kind=kind,
                text=f"the {port.limits.name} port of {self.broker} has no room for more "
                f"connections: it holds {port.count} and has closed {port.refused_count}",
                remedy="find the peers that hold them with `ss -tn`, or raise the limit of open "
                "files (`ulimit -n`) and restart",
                since_ms=self.since.began_ms(kind, holds=True),
            )


def store_metrics(store: MessageStore) -> tuple[Metric, ...]:
    """The metrics of the store itself, whichever slice uses it."""

    def behind(mark: Callable[[Watermarks], int]) -> Callable[[], int]:
        return lambda: store.watermarks.appended - mark(store.watermarks)

    def disk_bytes(part: Callable[[Usage], int]) -> Callable[[], int | None]:
        def read() -> int | None:
            try:
                return part(store.usage)
            except OSError:  # the disk failed; the other metrics must still be printed
                return None

        return read

    def damaged_index_files() -> int:
        return len(store.index.damaged) if store.index is not None else 0

    return (
        histogram("flush_seconds", "Syncing the log to the disk", store.flush_times),
        gauge("log_bytes", "Size of the log", behind(lambda marks: marks.minimum)),
        gauge(
            "unflushed_bytes", "Appended and not yet synced", behind(lambda marks: marks.flushed)
        ),
        gauge(
            "undispatched_bytes",
            "Appended and not yet visible",
            behind(lambda marks: marks.dispatched),
        ),
        gauge(
            "disk_size_bytes",
            "Size of the disk that the log is on",
            disk_bytes(lambda usage: usage.total),
        ),
        gauge("disk_free_bytes", "Free space on it", disk_bytes(lambda usage: usage.free)),
        gauge(
            "writes_refused",
            "1 while messages are rejected for lack of space",
            lambda: int(bool(store.refusal)),
        ),
        gauge("store_broken", "1 after a write or a sync failed", lambda: int(store.is_broken)),
        gauge(
            "damaged_records",
            "Records whose checksum failed when they were read",
            lambda: len(store.damaged),
        ),
        gauge(
            "damaged_index_files",
            "Index files that cannot be read or were truncated",
            damaged_index_files,
        ),
        gauges(
            "last_start",
            "Findings of the last start, by kind",
            ("kind",),
            lambda: _findings_of_start(store),
        ),
    )


def part_metrics(store: MessageStore) -> tuple[Metric, ...]:
    """The disks of the parts of the store, which may each have one of its own."""

    def part_bytes(of: Callable[[Usage], int]) -> Callable[[], list[Series]]:
        def read() -> list[Series]:
            try:
                return [((part,), of(usage)) for part, usage in store.usages_of_parts().items()]
            except OSError:
                return []

        return read

    return (
        gauges(
            "part_disk_size_bytes",
            "Size of the disk that a part of the store is on: log, queues, index, tables",
            ("part",),
            part_bytes(lambda usage: usage.total),
        ),
        gauges(
            "part_disk_free_bytes",
            "Free space on it",
            ("part",),
            part_bytes(lambda usage: usage.free),
        ),
    )


def _findings_of_start(store: MessageStore) -> Iterator[Series]:
    report = store.recovered
    yield ("cuts",), int(report.cut_at is not None)
    yield ("damaged_ranges",), len(report.damage)
    yield ("offsets_set_back",), report.clamped
    yield ("quarantined",), int(bool(report.quarantine))
    yield ("rebuilds",), int(bool(report.rebuilt))


def log_recovery(store: MessageStore) -> None:
    """Log what recovery did when the broker started, unless the last stop was clean and there was
    nothing to repair. Loss and damage also raise alarms, which have log lines of their own."""
    found = store.recovered
    done: dict[str, object] = {}
    if found.cut_at is not None:
        done["cut_at"] = found.cut_at
    if found.rebuilt:
        done["rebuilt"] = found.rebuilt
    if found.damage:
        done["damaged_ranges"] = len(found.damage)
    if found.quarantine:
        done["quarantine"] = found.quarantine
    if found.clamped:
        done["offsets_set_back"] = found.clamped
    if not store.was_clean or done:
        facts = {"records": found.records, "scanned_bytes": found.scanned_bytes, **done}
        log.info("store.recovered", extra=facts)
