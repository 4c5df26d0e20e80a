"""Alarms about the store and about what this broker accepts: the conditions every broker has."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.topics.permission import Permission
from tianzhou.store.incidents import Incident
from tianzhou.store.store import MessageStore
from tianzhou.wire.names import PERM_READ, PERM_WRITE

DISPATCH_BEHIND_MAX: Final = 64 * 1024 * 1024
INCIDENTS_NAMED_MAX: Final = 3
INDEX_FILES_NAMED_MAX: Final = 3


@dataclass(slots=True)
class StoreAlarms:
    """Owner: the broker loop."""

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
        for one in incidents.open:
            by_kind.setdefault(one.kind, []).append(one)
        for kind, found in by_kind.items():
            texts = [one.text for one in found[:INCIDENTS_NAMED_MAX]]
            more = len(found) - len(texts) + incidents.left_out
            yield Alarm(
                kind=kind,
                text="at a start: " + "; ".join(texts) + (f"; and {more} more" if more else ""),
                remedy="check the disk, and restore or send again what is lost; then: tianzhou "
                f"broker acknowledge {self.name}",
                since_ms=min(one.found_ms for one in found),
                is_problem=any(one.is_loss for one in found),
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
