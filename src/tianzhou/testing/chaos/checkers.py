"""The rules that a history must obey. Each rule is a function from a history and the final state to
complaints; a rule without complaints holds. Rules use no processes and no sockets.

Every rule has forged histories that break it, in tests/chaos: a rule that cannot fail proves
nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from tianzhou.testing.chaos.change_rules import (
    changes_are_linear,
    places_of_topics_name_one_message,
    refused_deletions_delete_nothing,
)
from tianzhou.testing.chaos.evidence import Evidence
from tianzhou.testing.chaos.guarantees import Guarantees
from tianzhou.testing.chaos.history import (
    Commit,
    Delivery,
    History,
    Kind,
    Outcome,
    Place,
    Queue,
    Send,
    Trouble,
)

Rule = Callable[[History, Evidence, Guarantees], Iterator[str]]
COMPLAINTS_MAX: Final = 10
"""Complaints per rule that are shown; the rest is counted."""
PATIENCE_S: Final = 0.9
"""A send that took longer than this may have been retried: on a busy machine a broker may respond
that a slave did not confirm in time."""
IN_FLIGHT_MAX: Final = 1_000
"""Messages that a client may have in flight in addition."""
EARLY_S: Final = 0.002
"""Brokers use timestamps in whole milliseconds."""


# Messages


def nothing_acknowledged_is_lost(
    history: History, found: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """1. Acknowledged messages are stored at the end."""
    if not guarantees.keeps_acknowledged:
        return
    stored = set(found.stored().values())
    for send in history.sends:
        is_wanted = send.outcome is Outcome.OK and send.kind is not Kind.ROLLED_BACK
        if is_wanted and send.value not in stored:
            yield f"{send.value} of {send.client} was acknowledged at {send.ended:.3f} and is gone"


def everything_is_delivered(
    history: History, found: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """1. Messages that are stored at the end were delivered to each group. Where an offset may be
    reused, a reader that got the earlier message at that offset has passed it."""
    lost = given_up(history, found, guarantees)
    for group in guarantees.groups:
        seen = {(row.place, row.value) for row in history.deliveries if row.group == group}
        passed = {place for place, _ in (seen & lost if guarantees.keeps_places else seen)}
        for place, value in found.stored().items():
            if (place, value) not in seen and place not in passed:
                yield f"{value} at {place} was never delivered to {group}"


def nothing_is_invented(history: History, found: Evidence, _: Guarantees) -> Iterator[str]:
    """2. Only messages that were sent and not refused are delivered or stored."""
    outcomes = {send.value: send.outcome for send in history.sends}
    shown = {row.value for row in history.deliveries}
    for replica in found.replicas:
        shown |= set(replica.stored.values())
    for value in sorted(shown):
        if value not in outcomes:
            yield f"{value} was never sent"
        elif outcomes[value] is Outcome.REFUSED:
            yield f"{value} was refused, and is there all the same"


def nothing_comes_early(history: History, _: Evidence, __: Guarantees) -> Iterator[str]:
    """9. A delayed message is not seen before it is due."""
    dues = {send.value: send.due for send in history.sends if send.kind is Kind.DELAYED}
    for row in history.deliveries:
        early_s = dues.get(row.value, row.at) - row.at
        if early_s > EARLY_S:
            yield f"{row.value} came to {row.group} {early_s:.3f} s before it was due"


def transactions_end_as_decided(history: History, found: Evidence, _: Guarantees) -> Iterator[str]:
    """8. A message that was rolled back is never visible, on any replica; a committed message is
    stored once, however often the commit was sent."""
    shown = {row.value for row in history.deliveries}
    for replica in found.replicas:
        shown |= set(replica.stored.values())
    copies = Counter(found.stored().values())
    for send in history.sends:
        if send.kind is Kind.ROLLED_BACK and send.value in shown:
            yield f"{send.value} was rolled back, and is there all the same"
        if send.kind is Kind.COMMITTED and copies[send.value] > 1:
            yield f"{send.value} was committed once and is stored {copies[send.value]} times"


def a_place_names_one_message(
    history: History, found: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """3. Responses, deliveries and all replicas agree on the message at each offset. Messages that
    an old master delivered and then gave up may differ from that, but not between its readers."""
    if not guarantees.keeps_places:
        return
    lost = given_up(history, found, guarantees)
    said: dict[tuple[Place, bool], tuple[str, str]] = {}
    for place, value, who in _placements(history, found):
        before, speaker = said.setdefault((place, (place, value) in lost), (value, who))
        if before != value:
            yield f"{place} is {before} to {speaker} and {value} to {who}"


def _placements(history: History, found: Evidence) -> Iterator[tuple[Place, str, str]]:
    for send in history.sends:
        if send.place is not None and send.outcome is Outcome.OK:
            yield send.place, send.value, f"the answer to {send.client}"
    for row in history.deliveries:
        yield row.place, row.value, row.client
    for replica in found.replicas:
        for place, value in replica.stored.items():
            yield place, value, replica.name


def replicas_hold_the_same(_: History, found: Evidence, __: Guarantees) -> Iterator[str]:
    """11. A pull returns the same from every replica of a group, except messages that retention
    removed from one of them."""
    stored = found.stored()
    for replica in found.replicas[found.masters :]:
        groups = {place.queue.broker for place in replica.stored}
        wanted = {place for place in stored if place.queue.broker in groups}
        firsts = found.first_offsets(replica.name)
        if not replica.stored:
            yield f"{replica.name} shows no message at all"
        for place in sorted(wanted - replica.stored.keys()):
            if place.offset >= firsts.get(place.queue.queue_id, 0):
                yield f"{replica.name} lacks {place}"
        for place in sorted(replica.stored.keys() - wanted):
            yield f"{replica.name} has {place}, which its master has not"


def logs_are_the_same_bytes(history: History, found: Evidence, _: Guarantees) -> Iterator[str]:
    """11. Replicas have the same log, byte for byte, and sound queues over it."""
    # `store verify` expects the queues of a topic that was deleted and created again to hold the
    # messages from before the deletion, which are still in the log.
    is_reborn = any(change.name and change.value is None for change in history.changes)
    for first, *others in found.logs:
        for log in (first, *others):
            for problem in log.problems:
                if not (is_reborn and problem.endswith("units are missing in the queues")):
                    yield f"{log.name}: {problem}"
        for log in others:
            if log.end != first.end:
                yield f"{log.name} ends at {log.end}, {first.name} at {first.end}"
            common = first.digests.keys() & log.digests.keys()
            if not common:
                yield f"{log.name} and {first.name} have no file in common"
            for start in sorted(common):
                if first.digests[start] != log.digests[start]:
                    yield f"file {start} of {log.name} is not that of {first.name}"
            if log.start == first.start and log.queues != first.queues:
                yield f"queues of {log.name} and {first.name} have other bounds"


# Order


def order_is_kept(history: History, found: Evidence, guarantees: Guarantees) -> Iterator[str]:
    """4. A send that was answered before another started is before it in their queue."""
    if not guarantees.keeps_places:
        return
    by_value = _first_places(found)
    rows: dict[Queue, list[tuple[float, float, int, str]]] = defaultdict(list)
    for send in history.sends:
        if send.kind is not Kind.PLAIN:
            continue  # the broker puts it into its queue later
        place = send.place or (by_value.get(send.value) if send.tries_max == 1 else None)
        if send.outcome is Outcome.OK and place is not None:
            rows[place.queue].append((send.began, send.ended, place.offset, send.value))
    for queue, sends in rows.items():
        yield from _overtakings(queue, sends)


def _first_places(found: Evidence) -> dict[str, Place]:
    return {value: place for place, value in sorted(found.stored().items(), reverse=True)}


def _overtakings(queue: Queue, sends: list[tuple[float, float, int, str]]) -> Iterator[str]:
    """Sweep over time: compare each starting send with the largest offset answered so far."""
    answers = sorted(sends, key=lambda row: row[1])
    done, highest, holder = 0, -1, ""
    for began, _, offset, value in sorted(sends):
        while done < len(answers) and answers[done][1] < began:
            if answers[done][2] > highest:
                highest, holder = answers[done][2], answers[done][3]
            done += 1
        if highest >= offset:
            yield f"{value} at {offset} of {queue} began after {holder} at {highest} was answered"


def readers_do_not_go_back(
    history: History, found: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """5. No broker sends a reader back to offsets it has already read, unless an old master gave up
    the last of them."""
    lost = {place for place, _ in given_up(history, found, guarantees)}
    for turn in history.turns if guarantees.keeps_places else ():
        if Place(turn.queue, turn.asked - 1) not in lost:
            asked = f"{turn.client} asked {turn.queue} for {turn.asked}"
            yield f"{asked} and was sent back to {turn.told}"


def readers_miss_nothing(history: History, _: Evidence, __: Guarantees) -> Iterator[str]:
    """5. A group gets the offsets of a queue without a gap, except before its first."""
    seen: dict[tuple[str, Queue], set[int]] = defaultdict(set)
    for row in history.deliveries:
        seen[row.group, row.place.queue].add(row.place.offset)
    for (group, queue), offsets in seen.items():
        gap = set(range(min(offsets), max(offsets))) - offsets
        if gap:
            yield f"{group} has {max(offsets)} of {queue} but not {min(gap)} ({len(gap)} missing)"


# Offsets


def offsets_do_not_go_back(history: History, _: Evidence, guarantees: Guarantees) -> Iterator[str]:
    """6. While a broker runs, a group's offset on it only grows. After a fault it may fall back,
    but not below its value ten seconds before the fault."""
    last: dict[tuple[str, Queue, str], int] = {}
    for row in sorted(history.commits, key=lambda row: row.at):
        life = (row.group, row.queue, row.life)
        before, last[life] = last.get(life, 0), row.offset
        if row.offset < before and not any(
            trouble.began <= row.at
            and row.offset >= _known_offset(history, row, trouble.began - guarantees.forgets_s)
            for trouble in history.troubles
        ):
            yield f"{row.group} stood at {before} of {row.queue} and then at {row.offset}"


def _known_offset(history: History, row: Commit, time: float) -> int:
    """Return the highest offset of this group that any broker reported until then."""
    known = (
        other.offset
        for other in history.commits
        if (other.group, other.queue) == (row.group, row.queue) and other.at <= time
    )
    return max(known, default=0)


def offsets_follow_deliveries(history: History, found: Evidence, _: Guarantees) -> Iterator[str]:
    """6. A group's offset does not pass messages that were not delivered to it."""
    seen: dict[tuple[str, Queue], set[int]] = defaultdict(set)
    for row in history.deliveries:
        seen[row.group, row.place.queue].add(row.place.offset)
    for (group, queue), offset in found.committed.items():
        missing = set(range(offset)) - seen[group, queue]
        if missing:
            yield f"{group} stands at {offset} of {queue} and never got {min(missing)}"


# Duplicates


def copies_are_explained(
    history: History, found: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """7. A message is stored more than once only if its sender may have retried: not more often
    than its tries, and not if it was answered quickly and without a fault. Or if it was delayed,
    and after a fault the broker did not know that it had delivered it."""
    sends = {send.value: send for send in history.sends}
    copies = Counter(found.stored().values())
    for value, count in copies.items():
        send = sends.get(value)
        if count == 1 or send is None:
            continue
        if send.kind is Kind.DELAYED:
            faults = _forgettings(send, history, guarantees)
            if count > send.tries_max + faults:
                yield f"{value}, delayed, is stored {count} times after {faults} faults"
        elif count > send.tries_max:
            yield f"{value} is stored {count} times; its client tries {send.tries_max} times"
        elif send.ended - send.began < PATIENCE_S and not _is_disturbed(send, history):
            yield f"{value} is stored {count} times, and nothing went wrong meanwhile"


def _forgettings(send: Send, history: History, guarantees: Guarantees) -> int:
    """Count the faults after which a delayed message may be delivered again: those shortly after it
    was due, and those shortly after such a fault, because it was delivered again then."""
    last, count = send.due + guarantees.forgets_s, 0
    for trouble in sorted(history.troubles, key=lambda trouble: trouble.began):
        if send.began <= trouble.ended and trouble.began <= last:
            last, count = trouble.ended + guarantees.forgets_s, count + 1
    return count


def _is_disturbed(send: Send, history: History) -> bool:
    return any(
        send.began <= trouble.ended and send.ended >= trouble.began for trouble in history.troubles
    )


def redeliveries_are_explained(
    history: History, _: Evidence, guarantees: Guarantees
) -> Iterator[str]:
    """7. A message is redelivered only after a fault, and only if it was recent when that began."""
    first: dict[tuple[str, Place], float] = {}
    again: Counter[tuple[str, Queue]] = Counter()
    young: Counter[tuple[str, Queue]] = Counter()
    for row in sorted(history.deliveries, key=lambda row: row.at):
        key, at = (row.group, row.place), row.at
        if key not in first:
            first[key] = at
            if any(_is_young(at, trouble, guarantees) for trouble in history.troubles):
                young[row.group, row.place.queue] += 1
            continue
        again[row.group, row.place.queue] += 1
        causes = [trouble for trouble in history.troubles if trouble.began <= at]
        if not causes:
            yield f"{row.value} came to {row.group} again before anything went wrong"
        elif not any(_is_young(first[key], trouble, guarantees) for trouble in causes):
            yield f"{row.value} came to {row.group} again, {at - first[key]:.1f} s after the first"
    troubles = len(history.troubles)
    for key, count in again.items():
        bound = troubles * (young[key] + IN_FLIGHT_MAX)
        if count > bound:
            yield f"{key} had {count} redeliveries; {troubles} faults explain at most {bound}"


def _is_young(delivered_at: float, trouble: Trouble, guarantees: Guarantees) -> bool:
    return trouble.began - guarantees.forgets_s <= delivered_at


# Guarantees of synchronous replication


def no_slave_no_promise(history: History, _: Evidence, guarantees: Guarantees) -> Iterator[str]:
    """With synchronous replication no send is acknowledged that started and ended while no slave
    could receive it or confirm it."""
    if not guarantees.waits_for_slave:
        return
    for trouble in history.troubles:
        for send in history.sends if trouble.severs else ():
            inside = trouble.began <= send.began and send.ended <= trouble.ended
            if inside and send.outcome is Outcome.OK:
                yield f"{send.value} was acknowledged during {trouble.what}, without a slave"


RULES: Final[tuple[Rule, ...]] = (
    nothing_acknowledged_is_lost,
    everything_is_delivered,
    nothing_is_invented,
    nothing_comes_early,
    transactions_end_as_decided,
    a_place_names_one_message,
    replicas_hold_the_same,
    logs_are_the_same_bytes,
    order_is_kept,
    readers_do_not_go_back,
    readers_miss_nothing,
    offsets_do_not_go_back,
    offsets_follow_deliveries,
    copies_are_explained,
    redeliveries_are_explained,
    no_slave_no_promise,
    changes_are_linear,
    refused_deletions_delete_nothing,
    places_of_topics_name_one_message,
)


def complaints(history: History, found: Evidence, guarantees: Guarantees) -> list[str]:
    """Return the complaints of all rules; an empty list means that all rules hold."""
    said: list[str] = []
    for rule in RULES:
        of_rule = list(rule(history, found, guarantees))
        said += [f"{rule.__name__}: {text}" for text in of_rule[:COMPLAINTS_MAX]]
        if len(of_rule) > COMPLAINTS_MAX:
            said.append(f"{rule.__name__}: and {len(of_rule) - COMPLAINTS_MAX} more")
    return said


Shown = tuple[Place, str]


def given_up(history: History, found: Evidence, guarantees: Guarantees) -> set[Shown]:
    """Return deliveries that no guarantee covers: an old master delivered the messages and then
    gave them up.

    A master that hangs while its slave is promoted does not know about the promotion when it
    resumes. Until it learns of it from a NameServer and follows the new master, readers see
    messages that only the old master has: their senders do not get SEND_OK. The old master sets
    these messages aside, and their offsets are reused, as docs/replication.md describes under
    promotion. All other delivered messages must be kept.

    The result has offsets and values that readers got during the fault and its effects, that are
    not stored there in the end, and that were never acknowledged.
    """
    if not guarantees.old_master_resumes:
        return set()
    stored = found.stored()
    promised = {(send.place, send.value) for send in history.sends if send.outcome is Outcome.OK}

    def is_given_up(row: Delivery) -> bool:
        return (
            stored.get(row.place) != row.value
            and (row.place, row.value) not in promised
            and any(trouble.began <= row.at <= trouble.ended for trouble in history.troubles)
        )

    return {(row.place, row.value) for row in history.deliveries if is_given_up(row)}
