"""A history in which everything is right, some that are odd but right, and many in which one thing
is wrong, each with the rule that must see it. Other rules may complain as well: a lost message is
also a gap.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tianzhou.testing.chaos import checkers
from tianzhou.testing.chaos.checkers import Promise, Rule
from tianzhou.testing.chaos.evidence import Evidence, LogSum, Replica
from tianzhou.testing.chaos.history import (
    FOREVER,
    Commit,
    Delivery,
    History,
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
    promise: Promise


def place_of(serial: int) -> Place:
    return Place(QUEUES[serial % 2], serial // 2)


def send_of(serial: int) -> Send:
    began = 100.0 + serial
    return Send("producer-0", f"v{serial}", began, began + 0.5, Outcome.OK, place_of(serial))


def delivery_of(serial: int, at: float | None = None) -> Delivery:
    moment = 100.9 + serial if at is None else at
    return Delivery("reader-0", GROUP, f"v{serial}", place_of(serial), moment)


def sound() -> Case:
    """20 sends to two queues, one after the other, each read at once, and two replicas."""
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
        (Replica("master", stored), Replica("slave", dict(stored))), 1,
        ((log, replace(log, name="slave")),), {(GROUP, queue): COUNT // 2 for queue in QUEUES},
    )  # fmt: skip
    return Case(history, found, Promise((GROUP,)))


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
    """A second copy at the end of its queue, delivered as well."""
    place = Place(place_of(serial).queue, COUNT // 2)
    both_hold(case, place, f"v{serial}")
    case.history.deliveries.append(Delivery("reader-0", GROUP, f"v{serial}", place, 130.0))
    change_send(case, serial, tries_max=tries_max)


# Histories that are right although they look odd


def an_unknown_send_is_there(case: Case) -> None:
    change_send(case, 3, outcome=Outcome.UNKNOWN, place=None)


def an_unknown_send_is_not_there(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "ghost", 103.0, FOREVER, Outcome.UNKNOWN))


def a_refused_send_is_not_there(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "no", 103.0, 103.5, Outcome.REFUSED))


def a_retry_during_a_fault_leaves_two(case: Case) -> None:
    case.history.troubles.append(FAULT)
    add_copy(case, 5, tries_max=3)


def a_redelivery_after_a_fault(case: Case) -> None:
    case.history.troubles.append(FAULT)
    case.history.deliveries.append(delivery_of(4, 107.0))


def a_new_life_knows_less(case: Case) -> None:
    case.history.commits.append(Commit(GROUP, QUEUES[0], 2, "master:2", 140.0))


def a_fault_makes_a_group_forget_a_little(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.commits.append(Commit(GROUP, QUEUES[0], 3, "master:1", 122.5))


def two_at_once_in_any_order(case: Case) -> None:
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


def an_acknowledged_send_around_a_cut(case: Case) -> None:
    case.promise = replace(case.promise, waits_for_slave=True)
    case.history.troubles.append(replace(SEVERED, began=103.2))


def a_slave_that_began_later(case: Case) -> None:
    change_slave_log(case, start=2_048, digests={2_048: "b"}, queues={})


ODD_BUT_RIGHT: Final = (
    an_unknown_send_is_there,
    an_unknown_send_is_not_there,
    a_refused_send_is_not_there,
    a_retry_during_a_fault_leaves_two,
    a_redelivery_after_a_fault,
    a_new_life_knows_less,
    a_fault_makes_a_group_forget_a_little,
    two_at_once_in_any_order,
    an_acknowledged_send_around_a_cut,
    a_slave_that_began_later,
)


# Histories that are wrong


def the_last_message_is_lost(case: Case) -> None:
    both_forget(case, 19)


def a_message_in_the_middle_is_lost(case: Case) -> None:
    both_forget(case, 6)


def only_the_slave_kept_it(case: Case) -> None:
    del stored_on(case, 0)[place_of(19)]


def another_message_took_its_place(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "thief", 130.0, FOREVER, Outcome.UNKNOWN))
    both_hold(case, place_of(19), "thief")


def it_is_stored_but_never_came(case: Case) -> None:
    del case.history.deliveries[7]


def only_another_group_got_it(case: Case) -> None:
    rows = case.history.deliveries
    rows[7] = replace(rows[7], group="others")


def one_group_of_two_got_nothing(case: Case) -> None:
    case.promise = replace(case.promise, groups=(GROUP, "others"))


def a_value_from_nowhere_is_delivered(case: Case) -> None:
    stray = Delivery("reader-0", GROUP, "stray", Place(QUEUES[0], 10), 130.0)
    case.history.deliveries.append(stray)


def a_value_from_nowhere_is_stored(case: Case) -> None:
    both_hold(case, Place(QUEUES[0], 10), "stray")


def the_slave_alone_has_a_stranger(case: Case) -> None:
    stored_on(case, 1)[Place(QUEUES[0], 10)] = "stray"


def a_refused_send_is_delivered(case: Case) -> None:
    change_send(case, 8, outcome=Outcome.REFUSED, place=None)


def the_answer_names_another_place(case: Case) -> None:
    change_send(case, 8, place=place_of(10))


def a_place_is_used_again(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "late", 131.0, 131.5, Outcome.OK, place_of(19)))


def readers_saw_different_messages(case: Case) -> None:
    rows = case.history.deliveries
    case.history.deliveries.append(replace(rows[2], client="reader-1", place=place_of(4)))


def replicas_differ_in_one_message(case: Case) -> None:
    stored_on(case, 1)[place_of(4)] = "v6"


def the_slave_lacks_the_end(case: Case) -> None:
    del stored_on(case, 1)[place_of(19)]


def the_slave_lacks_everything(case: Case) -> None:
    stored_on(case, 1).clear()


def the_slave_has_more(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "more", 103.0, FOREVER, Outcome.UNKNOWN))
    stored_on(case, 1)[Place(QUEUES[1], 10)] = "more"


def one_byte_of_the_log_differs(case: Case) -> None:
    change_slave_log(case, digests={0: "a", 2_048: "B"})


def one_log_is_longer(case: Case) -> None:
    change_slave_log(case, end=4_100)


def logs_have_nothing_in_common(case: Case) -> None:
    change_slave_log(case, digests={4_096: "a"})


def queues_of_the_slave_are_shorter(case: Case) -> None:
    change_slave_log(case, queues={0: (0, 9)})


def a_replica_is_damaged(case: Case) -> None:
    change_slave_log(case, problems=("queue 0 of chaos points at the wrong records",))


def a_later_send_stands_before(case: Case) -> None:
    one, other = place_of(4), place_of(12)
    both_hold(case, one, "v12")
    both_hold(case, other, "v4")
    change_send(case, 4, place=other)
    change_send(case, 12, place=one)
    rows = case.history.deliveries
    rows[4] = replace(rows[4], place=other)
    rows[12] = replace(rows[12], place=one)


def a_later_send_stands_before_and_the_client_does_not_know(case: Case) -> None:
    a_later_send_stands_before(case)
    change_send(case, 4, place=None)
    change_send(case, 12, place=None)


def an_offset_is_given_twice(case: Case) -> None:
    change_send(case, 14, place=place_of(12))


def a_reader_is_sent_back(case: Case) -> None:
    case.history.turns.append(Turn("reader-0", QUEUES[0], 9, 0, 125.0))


def a_reader_skips_one(case: Case) -> None:
    del case.history.deliveries[10]


def a_group_forgets_how_far_it_was(case: Case) -> None:
    case.history.commits.append(Commit(GROUP, QUEUES[0], 3, "master:1", 150.0))


def a_fault_makes_a_group_forget_too_much(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.commits.append(Commit(GROUP, QUEUES[0], 2, "master:1", 122.5))


def a_group_forgets_for_a_moment(case: Case) -> None:
    case.history.commits.append(Commit(GROUP, QUEUES[0], 0, "master:1", 110.0))


def a_group_confirmed_what_it_never_got(case: Case) -> None:
    case.found = replace(case.found, committed={(GROUP, QUEUES[0]): 11})


def a_group_passed_a_gap(case: Case) -> None:
    case.promise = replace(case.promise, groups=())
    del case.history.deliveries[0]


def a_copy_without_a_cause(case: Case) -> None:
    add_copy(case, 5, tries_max=3)


def a_copy_of_a_client_that_tries_once(case: Case) -> None:
    case.history.troubles.append(FAULT)
    add_copy(case, 5, tries_max=1)


def a_copy_after_all_was_well_again(case: Case) -> None:
    case.history.troubles.append(FAULT)
    add_copy(case, 15, tries_max=3)


def a_redelivery_without_a_cause(case: Case) -> None:
    case.history.deliveries.append(delivery_of(4, 107.0))


def a_redelivery_before_its_cause(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.deliveries.append(delivery_of(14, 117.0))


def a_redelivery_of_something_old(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.deliveries.append(delivery_of(2, 120.0))


def redeliveries_without_end(case: Case) -> None:
    case.history.troubles.append(FAULT)
    for rank in range(checkers.IN_FLIGHT_MAX + 50):
        case.history.deliveries.append(delivery_of(4, 107.0 + rank / 1000))


def acknowledged_while_the_slave_was_cut_off(case: Case) -> None:
    case.promise = replace(case.promise, waits_for_slave=True)
    case.history.troubles.append(SEVERED)


WRONG: Final[dict[Rule, tuple[Callable[[Case], None], ...]]] = {
    checkers.nothing_acknowledged_is_lost: (
        the_last_message_is_lost,
        a_message_in_the_middle_is_lost,
        only_the_slave_kept_it,
        another_message_took_its_place,
    ),
    checkers.everything_is_delivered: (
        it_is_stored_but_never_came,
        only_another_group_got_it,
        one_group_of_two_got_nothing,
    ),
    checkers.nothing_is_invented: (
        a_value_from_nowhere_is_delivered,
        a_value_from_nowhere_is_stored,
        the_slave_alone_has_a_stranger,
        a_refused_send_is_delivered,
    ),
    checkers.a_place_names_one_message: (
        the_answer_names_another_place,
        a_place_is_used_again,
        readers_saw_different_messages,
        replicas_differ_in_one_message,
        another_message_took_its_place,
    ),
    checkers.replicas_hold_the_same: (
        the_slave_lacks_the_end,
        the_slave_lacks_everything,
        the_slave_has_more,
    ),
    checkers.logs_are_the_same_bytes: (
        one_byte_of_the_log_differs,
        one_log_is_longer,
        logs_have_nothing_in_common,
        queues_of_the_slave_are_shorter,
        a_replica_is_damaged,
    ),
    checkers.order_is_kept: (
        a_later_send_stands_before,
        a_later_send_stands_before_and_the_client_does_not_know,
        an_offset_is_given_twice,
    ),
    checkers.readers_do_not_go_back: (a_reader_is_sent_back,),
    checkers.readers_miss_nothing: (a_reader_skips_one, only_another_group_got_it),
    checkers.offsets_do_not_go_back: (
        a_group_forgets_how_far_it_was,
        a_fault_makes_a_group_forget_too_much,
        a_group_forgets_for_a_moment,
    ),
    checkers.offsets_follow_deliveries: (
        a_group_confirmed_what_it_never_got,
        a_group_passed_a_gap,
    ),
    checkers.copies_are_explained: (
        a_copy_without_a_cause,
        a_copy_of_a_client_that_tries_once,
        a_copy_after_all_was_well_again,
    ),
    checkers.redeliveries_are_explained: (
        a_redelivery_without_a_cause,
        a_redelivery_before_its_cause,
        a_redelivery_of_something_old,
        redeliveries_without_end,
    ),
    checkers.no_slave_no_promise: (acknowledged_while_the_slave_was_cut_off,),
}
