"""A valid history, and some that are unusual but valid."""

from dataclasses import dataclass, replace
from typing import Final

from tianzhou.testing.chaos.evidence import Evidence, LogSum, Replica
from tianzhou.testing.chaos.guarantees import Guarantees
from tianzhou.testing.chaos.history import (
    FOREVER,
    Commit,
    Delivery,
    History,
    Kind,
    Outcome,
    Place,
    Queue,
    Send,
    Trouble,
    Turn,
)

GROUP: Final = "readers"
QUEUES: Final = (Queue("broker-a", 0), Queue("broker-a", 1))
COUNT: Final = 20
FAULT: Final = Trouble("kill master", 105.0, 106.0)
SEVERED: Final = Trouble("cut", 103.0, 104.0, severs=True)


@dataclass
class Case:
    history: History
    found: Evidence
    guarantees: Guarantees


def place_of(serial: int) -> Place:
    return Place(QUEUES[serial % 2], serial // 2)


def send_of(serial: int) -> Send:
    began = 100.0 + serial
    return Send("producer-0", f"v{serial}", began, began + 0.5, Outcome.OK, place_of(serial))


def delivery_of(serial: int, at: float | None = None) -> Delivery:
    at_s = 100.9 + serial if at is None else at
    return Delivery("reader-0", GROUP, f"v{serial}", place_of(serial), at_s)


def sound() -> Case:
    """20 sends to two queues, one after the other, each read at once, with two replicas."""
    history = History()
    history.sends = [send_of(serial) for serial in range(COUNT)]
    history.deliveries = [delivery_of(serial) for serial in range(COUNT)]
    history.commits = [
        Commit(GROUP, queue, offset, "master:1", 101.0 + 2 * offset)
        for queue in QUEUES
        for offset in range(COUNT // 2 + 1)
    ]
    stored = {place_of(serial): f"v{serial}" for serial in range(COUNT)}
    log = LogSum("master", 0, 4_000, {0: "a", 2_048: "b"}, {0: (0, 10)})
    found = Evidence(
        (Replica("master", stored), Replica("slave", dict(stored))),
        1,
        ((log, replace(log, name="slave")),),
        {(GROUP, queue): COUNT // 2 for queue in QUEUES},
    )
    return Case(history, found, Guarantees((GROUP,)))


def stored_on(case: Case, rank: int) -> dict[Place, str]:
    stored = case.found.replicas[rank].stored
    assert isinstance(stored, dict)
    return stored


def both_forget(case: Case, serial: int) -> None:
    for rank in (0, 1):
        del stored_on(case, rank)[place_of(serial)]


def both_hold(case: Case, place: Place, value: str) -> None:
    for rank in (0, 1):
        stored_on(case, rank)[place] = value


def change_send(case: Case, serial: int, **changes: object) -> None:
    sends = case.history.sends
    sends[serial] = replace(sends[serial], **changes)


def change_slave_log(case: Case, **changes: object) -> None:
    ((master, slave),) = case.found.logs
    case.found = replace(case.found, logs=((master, replace(slave, **changes)),))


def add_copy(case: Case, serial: int, *, tries_max: int) -> None:
    """Add a duplicate at the end of its queue, which is delivered as well."""
    place = Place(place_of(serial).queue, COUNT // 2)
    both_hold(case, place, f"v{serial}")
    case.history.deliveries.append(Delivery("reader-0", GROUP, f"v{serial}", place, 130.0))
    change_send(case, serial, tries_max=tries_max)


# Histories that are valid although they look unusual


def unknown_send_is_stored(case: Case) -> None:
    change_send(case, 3, outcome=Outcome.UNKNOWN, place=None)


def unknown_send_is_not_stored(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "ghost", 103.0, FOREVER, Outcome.UNKNOWN))


def rejected_send_is_not_stored(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "no", 103.0, 103.5, Outcome.REFUSED))


def retry_during_a_fault_stores_two_messages(case: Case) -> None:
    case.history.troubles.append(FAULT)
    add_copy(case, 5, tries_max=3)


def redelivery_after_a_fault(case: Case) -> None:
    case.history.troubles.append(FAULT)
    case.history.deliveries.append(delivery_of(4, 107.0))


def delayed_messages_are_delivered_in_any_order(case: Case) -> None:
    """The later send is delivered first: its delay was shorter."""
    concurrent_sends_are_stored_in_any_order(case)
    change_send(case, 4, began=104.0, ended=104.1, kind=Kind.DELAYED, place=None, due=104.5)
    change_send(case, 6, began=104.3, ended=104.4, kind=Kind.DELAYED, place=None, due=104.5)


def fault_repeats_the_delivery_of_a_delayed_message(case: Case) -> None:
    case.history.troubles.append(FAULT)
    change_send(case, 3, kind=Kind.DELAYED, place=None, due=103.8)
    add_copy(case, 3, tries_max=1)


def rolled_back_message_is_not_stored(case: Case) -> None:
    send = Send("producer-1", "taken-back", 103.0, 103.5, Outcome.OK, kind=Kind.ROLLED_BACK)
    case.history.sends.append(send)


def reader_passed_an_offset_before_it_was_reused(case: Case) -> None:
    """The message that it read there was lost with a master whose slave had not kept up."""
    case.guarantees = replace(case.guarantees, keeps_acknowledged=False, keeps_places=False)
    case.history.sends.append(Send("producer-1", "lost", 117.0, 117.5, Outcome.OK, place_of(19)))
    rows = case.history.deliveries
    rows[19] = replace(rows[19], value="lost")


def old_master_serves_a_message_and_drops_it(case: Case) -> None:
    """It hung while its slave was promoted. The first message there was never acknowledged."""
    case.guarantees = replace(case.guarantees, old_master_resumes=True)
    case.history.troubles.append(FAULT)
    case.history.sends.append(
        Send("producer-1", "aside", 105.1, 105.2, Outcome.UNKNOWN, place_of(5))
    )
    case.history.deliveries.append(Delivery("reader-0", GROUP, "aside", place_of(5), 105.3))


def reader_passed_a_message_that_an_old_master_dropped(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    del case.history.deliveries[5]


def reader_moves_back_from_messages_that_an_old_master_dropped(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    place = place_of(5)
    case.history.turns.append(Turn("reader-0", place.queue, place.offset + 1, place.offset, 105.5))


def restarted_master_has_a_lower_committed_offset(case: Case) -> None:
    case.history.commits.append(Commit(GROUP, QUEUES[0], 2, "master:2", 140.0))


def fault_moves_a_group_back_a_little(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.commits.append(Commit(GROUP, QUEUES[0], 3, "master:1", 122.5))


def concurrent_sends_are_stored_in_any_order(case: Case) -> None:
    change_send(case, 4, began=104.0, ended=107.9)
    change_send(case, 6, began=104.0, ended=107.9)
    one, other = place_of(4), place_of(6)
    both_hold(case, one, "v6")
    both_hold(case, other, "v4")
    change_send(case, 4, place=other)
    change_send(case, 6, place=one)
    rows = case.history.deliveries
    rows[4] = replace(rows[4], place=other)
    rows[6] = replace(rows[6], place=one)


def acknowledged_send_around_a_cut(case: Case) -> None:
    case.guarantees = replace(case.guarantees, waits_for_slave=True)
    case.history.troubles.append(replace(SEVERED, began=103.2))


def slave_log_starts_later(case: Case) -> None:
    change_slave_log(case, start=2_048, digests={2_048: "b"}, queues={})


def retention_removes_messages_from(case: Case, rank: int) -> None:
    """The disk of the master (0) or of the slave (1) was full: its first three offsets are gone."""
    ((master, slave),) = case.found.logs
    logs = [master, slave]
    queues = {queue.queue_id: (3, COUNT // 2) for queue in QUEUES}
    logs[rank] = replace(logs[rank], start=2_048, digests={2_048: "b"}, queues=queues)
    case.found = replace(case.found, logs=(tuple(logs),))
    for place in [place for place in stored_on(case, rank) if place.offset < 3]:
        del stored_on(case, rank)[place]


def retention_removes_messages_from_the_slave(case: Case) -> None:
    retention_removes_messages_from(case, 1)


def retention_removes_messages_from_the_master(case: Case) -> None:
    retention_removes_messages_from(case, 0)


ODD_BUT_RIGHT: Final = (
    unknown_send_is_stored,
    unknown_send_is_not_stored,
    rejected_send_is_not_stored,
    retry_during_a_fault_stores_two_messages,
    redelivery_after_a_fault,
    delayed_messages_are_delivered_in_any_order,
    fault_repeats_the_delivery_of_a_delayed_message,
    rolled_back_message_is_not_stored,
    reader_passed_an_offset_before_it_was_reused,
    restarted_master_has_a_lower_committed_offset,
    old_master_serves_a_message_and_drops_it,
    reader_passed_a_message_that_an_old_master_dropped,
    reader_moves_back_from_messages_that_an_old_master_dropped,
    fault_moves_a_group_back_a_little,
    concurrent_sends_are_stored_in_any_order,
    acknowledged_send_around_a_cut,
    slave_log_starts_later,
    retention_removes_messages_from_the_slave,
    retention_removes_messages_from_the_master,
)
