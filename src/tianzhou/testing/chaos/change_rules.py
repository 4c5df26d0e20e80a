"""Rules about administration: a change that succeeded holds, a rejected one does not, and an offset
of a queue never belongs to two acknowledged messages."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tianzhou.testing.chaos.evidence import Evidence
from tianzhou.testing.chaos.guarantees import Guarantees
from tianzhou.testing.chaos.history import ANY, Change, History, Outcome, Placed


def changes_are_linear(history: History, _: Evidence, guarantees: Guarantees) -> Iterator[str]:
    """Every name has the value of the last successful change, or of a later one with an unknown
    outcome, and all members agree."""
    if not guarantees.keeps_changes:
        return
    changes: defaultdict[str, list[Change]] = defaultdict(list)
    for change in history.changes:
        if change.name and change.outcome is not Outcome.REFUSED:
            changes[change.name].append(change)
    for view in history.views:
        for name, value in view.names.items():
            allowed = _allowed([*changes[name], *_deletions_of_parts(name, changes)])
            if value not in allowed and ANY not in allowed:
                yield f"{name} is {value} at {view.member}; it can only be one of {allowed}"
            elif value != history.views[0].names.get(name):
                first = history.views[0]
                yield f"{name} is {value} at {view.member}, {first.names[name]} at {first.member}"


def _deletions_of_parts(name: str, changes: Mapping[str, list[Change]]) -> list[Change]:
    """Offsets are deleted with their group and with their topic."""
    parts = name.split(" in ")
    return [
        change
        for part in parts
        if len(parts) > 1
        for change in changes.get(part, ())
        if change.value is None
    ]


def _allowed(changes: list[Change]) -> list[str | None]:
    """The possible final values of a name, after its changes in the order of the requests. Names do
    not exist at first."""
    allowed: list[str | None] = [None]
    for change in sorted(changes, key=lambda change: change.began):
        if change.outcome is Outcome.OK:
            allowed = []
        allowed.append(change.value)
    return allowed


def refused_deletions_delete_nothing(
    history: History, _: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """Acknowledged messages of a topic exist at the end, on every member, unless a deletion of the
    topic succeeded or may have."""
    if not guarantees.keeps_changes:
        return
    deletions = _deletions(history)
    for sent in history.placed:
        if any(deletion.ended >= sent.began for deletion in deletions[sent.topic]):
            continue
        place = sent.topic, sent.queue_id, sent.offset
        for view in history.views:
            found = view.stored.get(place)
            if found != sent.value:
                yield f"{view.member} has {found} at {place}; {sent.value} was acknowledged there"


def places_of_topics_name_one_message(
    history: History, _: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """No two acknowledged messages have the same offset, unless the topic was deleted between
    them."""
    if not guarantees.keeps_changes:
        return
    deletions = _deletions(history)
    latest: dict[tuple[str, int, int], Placed] = {}
    for sent in sorted(history.placed, key=lambda sent: sent.ended):
        place = sent.topic, sent.queue_id, sent.offset
        before, latest[place] = latest.get(place), sent
        if before is not None and not any(
            deletion.began < sent.ended and deletion.ended > before.began
            for deletion in deletions[sent.topic]
        ):
            yield f"{before.value} and {sent.value} were both acknowledged at {place}"


def _deletions(history: History) -> defaultdict[str, list[Change]]:
    """For each topic, the deletions that succeeded or may have."""
    found: defaultdict[str, list[Change]] = defaultdict(list)
    for change in history.changes:
        if change.value is None and change.outcome is not Outcome.REFUSED:
            found[change.name].append(change)
    return found
