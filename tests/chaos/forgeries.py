"""Histories with one error each, and the rule that must detect it. Other rules may report it too: a
lost message is also a gap. This is one file because the table at its end must list every forgery
beside its rule.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from chaos.sound_history import (
    FAULT,
    GROUP,
    QUEUES,
    SEVERED,
    Case,
    add_copy,
    an_old_master_shows_a_message_and_gives_it_up,
    both_forget,
    both_hold,
    change_send,
    change_slave_log,
    delivery_of,
    place_of,
    stored_on,
)
from tianzhou.testing.chaos import change_rules, checkers
from tianzhou.testing.chaos.checkers import Rule
from tianzhou.testing.chaos.history import (
    ANY,
    FOREVER,
    Change,
    Commit,
    Delivery,
    Kind,
    Outcome,
    Place,
    Placed,
    Send,
    Turn,
    View,
    offsets_name,
)


def last_message_is_lost(case: Case) -> None:
    both_forget(case, 19)


def a_message_in_the_middle_is_lost(case: Case) -> None:
    both_forget(case, 6)


def message_is_only_on_the_slave(case: Case) -> None:
    del stored_on(case, 0)[place_of(19)]


def another_message_has_the_place(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "thief", 130.0, FOREVER, Outcome.UNKNOWN))
    both_hold(case, place_of(19), "thief")


def an_acknowledged_place_was_used_again(case: Case) -> None:
    """Readers may have been misled, but two senders must not be given the same place."""
    an_old_master_shows_a_message_and_gives_it_up(case)
    first, second = case.history.sends[3], case.history.sends[4]
    case.history.sends[4] = replace(second, place=first.place)


def old_master_drops_an_acknowledged_message(case: Case) -> None:
    an_old_master_shows_a_message_and_gives_it_up(case)
    case.history.sends[-1] = replace(
        case.history.sends[-1], ended=105.6, outcome=Outcome.OK, place=place_of(5)
    )


def an_old_master_shows_a_message_long_after(case: Case) -> None:
    an_old_master_shows_a_message_and_gives_it_up(case)
    rows = case.history.deliveries
    rows[-1] = replace(rows[-1], at=130.0)


def an_old_master_shows_two_messages_at_a_place(case: Case) -> None:
    an_old_master_shows_a_message_and_gives_it_up(case)
    sends, rows = case.history.sends, case.history.deliveries
    sends.append(replace(sends[-1], value="other"))
    rows.append(replace(rows[-1], value="other"))


def a_place_is_used_again_where_no_master_hung(case: Case) -> None:
    an_old_master_shows_a_message_and_gives_it_up(case)
    case.guarantees = replace(case.guarantees, old_master_resumes=False)


def a_reader_passed_a_place_that_no_old_master_gave_up(case: Case) -> None:
    an_old_master_shows_a_message_and_gives_it_up(case)
    del case.history.deliveries[7]


def a_reader_is_sent_back_from_what_no_old_master_gave_up(case: Case) -> None:
    an_old_master_shows_a_message_and_gives_it_up(case)
    case.history.turns.append(Turn("reader-0", QUEUES[0], 7, 5, 105.9))


def stored_message_is_never_delivered(case: Case) -> None:
    del case.history.deliveries[7]


def undelivered_message_where_places_may_be_reused(case: Case) -> None:
    case.guarantees = replace(case.guarantees, keeps_places=False)
    del case.history.deliveries[19]


def message_is_delivered_only_to_another_group(case: Case) -> None:
    rows = case.history.deliveries
    rows[7] = replace(rows[7], group="others")


def one_group_of_two_got_nothing(case: Case) -> None:
    case.guarantees = replace(case.guarantees, groups=(GROUP, "others"))


def value_that_was_never_sent_is_delivered(case: Case) -> None:
    stray = Delivery("reader-0", GROUP, "stray", Place(QUEUES[0], 10), 130.0)
    case.history.deliveries.append(stray)


def value_that_was_never_sent_is_stored(case: Case) -> None:
    both_hold(case, Place(QUEUES[0], 10), "stray")


def slave_alone_has_an_unknown_value(case: Case) -> None:
    stored_on(case, 1)[Place(QUEUES[0], 10)] = "stray"


def a_refused_send_is_delivered(case: Case) -> None:
    change_send(case, 8, outcome=Outcome.REFUSED, place=None)


def a_delayed_message_comes_early(case: Case) -> None:
    change_send(case, 8, kind=Kind.DELAYED, place=None, due=109.0)


def a_delayed_message_never_comes(case: Case) -> None:
    change_send(case, 8, kind=Kind.DELAYED, place=None, due=108.2)
    both_forget(case, 8)


def delayed_message_comes_twice_without_a_fault(case: Case) -> None:
    change_send(case, 8, kind=Kind.DELAYED, place=None, due=108.2)
    add_copy(case, 8, tries_max=1)


def a_delayed_message_comes_twice_long_before_a_fault(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=125.0, ended=126.0))
    delayed_message_comes_twice_without_a_fault(case)


def rolled_back_message_is_delivered(case: Case) -> None:
    change_send(case, 8, kind=Kind.ROLLED_BACK, place=None)


def rolled_back_message_is_visible_on_the_slave(case: Case) -> None:
    send = Send("producer-1", "taken-back", 103.0, 103.5, Outcome.OK, kind=Kind.ROLLED_BACK)
    case.history.sends.append(send)
    stored_on(case, 1)[Place(QUEUES[0], 10)] = "taken-back"


def committed_message_is_stored_twice(case: Case) -> None:
    case.history.troubles.append(FAULT)
    change_send(case, 5, kind=Kind.COMMITTED, place=None)
    add_copy(case, 5, tries_max=3)


def committed_message_is_lost(case: Case) -> None:
    change_send(case, 8, kind=Kind.COMMITTED, place=None)
    both_forget(case, 8)


def response_names_another_place(case: Case) -> None:
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


def committed_offset_drops(case: Case) -> None:
    case.history.commits.append(Commit(GROUP, QUEUES[0], 3, "master:1", 150.0))


def committed_offset_drops_too_far_after_a_fault(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.commits.append(Commit(GROUP, QUEUES[0], 2, "master:1", 122.5))


def committed_offset_drops_briefly(case: Case) -> None:
    case.history.commits.append(Commit(GROUP, QUEUES[0], 0, "master:1", 110.0))


def group_committed_an_undelivered_message(case: Case) -> None:
    case.found = replace(case.found, committed={(GROUP, QUEUES[0]): 11})


def a_group_passed_a_gap(case: Case) -> None:
    case.guarantees = replace(case.guarantees, groups=())
    del case.history.deliveries[0]


def duplicate_without_a_cause(case: Case) -> None:
    add_copy(case, 5, tries_max=3)


def duplicate_of_a_client_without_retries(case: Case) -> None:
    case.history.troubles.append(FAULT)
    add_copy(case, 5, tries_max=1)


def duplicate_after_recovery(case: Case) -> None:
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
    case.guarantees = replace(case.guarantees, waits_for_slave=True)
    case.history.troubles.append(SEVERED)


TOPIC: Final = "admin-topic"


def _changed(case: Case, value: str | None, began: float, outcome: Outcome = Outcome.OK) -> None:
    ended = FOREVER if outcome is Outcome.UNKNOWN else began + 1
    case.history.changes.append(
        Change("admin", "change", TOPIC, value, "n0", began, ended, outcome)
    )


def _placed(case: Case, value: str, at: float, offset: int = 0) -> None:
    case.history.placed.append(Placed(value, TOPIC, 0, offset, at, at + 0.5))


def _views(case: Case, *values: str | None, stored: tuple[str, ...] = ()) -> None:
    places = {(TOPIC, 0, offset): value for offset, value in enumerate(stored)}
    case.history.views += [
        View(f"n{rank}", {TOPIC: value}, dict(places)) for rank, value in enumerate(values)
    ]


def a_successful_change_is_gone(case: Case) -> None:
    _changed(case, "6", 100)
    _changed(case, "7", 102)
    _views(case, "6", "6")


def a_refused_change_was_made(case: Case) -> None:
    _changed(case, "6", 100)
    _changed(case, None, 102, Outcome.REFUSED)
    _views(case, None, None)


def an_unknown_change_comes_back_after_a_later_one(case: Case) -> None:
    _changed(case, "6", 100, Outcome.UNKNOWN)
    _changed(case, None, 110)
    _views(case, "6", "6")


def members_disagree_about_a_change(case: Case) -> None:
    _changed(case, "6", 100)
    _changed(case, "7", 102, Outcome.UNKNOWN)
    _views(case, "6", "7")


def _reset(case: Case, value: str, began: float, outcome: Outcome = Outcome.OK) -> None:
    ended = FOREVER if outcome is Outcome.UNKNOWN else began + 1
    name = offsets_name("readers", TOPIC)
    case.history.changes.append(Change("admin", "reset", name, value, "n0", began, ended, outcome))


def _offsets(case: Case, *values: str | None) -> None:
    case.history.views += [
        View(f"n{rank}", {offsets_name("readers", TOPIC): value}, {})
        for rank, value in enumerate(values)
    ]


def a_reset_is_undone(case: Case) -> None:
    _changed(case, "6", 100)
    _reset(case, "3,4", 102)
    _reset(case, "0,0", 104)
    _offsets(case, "3,4", "3,4")


def offsets_outlive_their_topic(case: Case) -> None:
    _changed(case, "6", 100)
    _reset(case, "3,4", 102)
    _changed(case, None, 104)
    _offsets(case, "3,4", "3,4")


def members_disagree_about_a_reset(case: Case) -> None:
    _changed(case, "6", 100)
    _reset(case, ANY, 102, Outcome.UNKNOWN)
    _offsets(case, "3,4", "0,0")


def a_refused_deletion_took_the_messages(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "kept", 102)
    _changed(case, None, 104, Outcome.REFUSED)
    _views(case, "6", "6")


def one_member_lost_the_messages_of_a_topic(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "kept", 102)
    _views(case, "6", "6", stored=("kept",))
    case.history.views[1].stored.clear()


def messages_come_back_in_another_place(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "first", 102)
    _placed(case, "second", 103, offset=1)
    _views(case, "6", stored=("second", "first"))


def a_place_of_a_topic_is_given_twice(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "first", 102)
    _placed(case, "second", 104)


def a_refused_deletion_frees_a_place(case: Case) -> None:
    a_place_of_a_topic_is_given_twice(case)
    _changed(case, None, 103, Outcome.REFUSED)


def a_deletion_after_both_frees_a_place(case: Case) -> None:
    a_place_of_a_topic_is_given_twice(case)
    _changed(case, None, 110)


WRONG: Final[dict[Rule, tuple[Callable[[Case], None], ...]]] = {
    checkers.nothing_acknowledged_is_lost: (
        last_message_is_lost,
        a_message_in_the_middle_is_lost,
        message_is_only_on_the_slave,
        another_message_has_the_place,
        a_delayed_message_never_comes,
        committed_message_is_lost,
    ),
    checkers.everything_is_delivered: (
        stored_message_is_never_delivered,
        undelivered_message_where_places_may_be_reused,
        message_is_delivered_only_to_another_group,
        one_group_of_two_got_nothing,
        a_reader_passed_a_place_that_no_old_master_gave_up,
    ),
    checkers.nothing_is_invented: (
        value_that_was_never_sent_is_delivered,
        value_that_was_never_sent_is_stored,
        slave_alone_has_an_unknown_value,
        a_refused_send_is_delivered,
    ),
    checkers.nothing_comes_early: (a_delayed_message_comes_early,),
    checkers.transactions_end_as_decided: (
        rolled_back_message_is_delivered,
        rolled_back_message_is_visible_on_the_slave,
        committed_message_is_stored_twice,
    ),
    checkers.a_place_names_one_message: (
        response_names_another_place,
        a_place_is_used_again,
        readers_saw_different_messages,
        replicas_differ_in_one_message,
        another_message_has_the_place,
        an_acknowledged_place_was_used_again,
        old_master_drops_an_acknowledged_message,
        an_old_master_shows_a_message_long_after,
        an_old_master_shows_two_messages_at_a_place,
        a_place_is_used_again_where_no_master_hung,
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
    checkers.readers_do_not_go_back: (
        a_reader_is_sent_back,
        a_reader_is_sent_back_from_what_no_old_master_gave_up,
    ),
    checkers.readers_miss_nothing: (a_reader_skips_one, message_is_delivered_only_to_another_group),
    checkers.offsets_do_not_go_back: (
        committed_offset_drops,
        committed_offset_drops_too_far_after_a_fault,
        committed_offset_drops_briefly,
    ),
    checkers.offsets_follow_deliveries: (
        group_committed_an_undelivered_message,
        a_group_passed_a_gap,
    ),
    checkers.copies_are_explained: (
        duplicate_without_a_cause,
        duplicate_of_a_client_without_retries,
        duplicate_after_recovery,
        delayed_message_comes_twice_without_a_fault,
        a_delayed_message_comes_twice_long_before_a_fault,
    ),
    checkers.redeliveries_are_explained: (
        a_redelivery_without_a_cause,
        a_redelivery_before_its_cause,
        a_redelivery_of_something_old,
        redeliveries_without_end,
    ),
    checkers.no_slave_no_promise: (acknowledged_while_the_slave_was_cut_off,),
    change_rules.changes_are_linear: (
        a_successful_change_is_gone,
        a_refused_change_was_made,
        an_unknown_change_comes_back_after_a_later_one,
        members_disagree_about_a_change,
        a_reset_is_undone,
        offsets_outlive_their_topic,
        members_disagree_about_a_reset,
    ),
    change_rules.refused_deletions_delete_nothing: (
        a_refused_deletion_took_the_messages,
        one_member_lost_the_messages_of_a_topic,
        messages_come_back_in_another_place,
    ),
    change_rules.places_of_topics_name_one_message: (
        a_place_of_a_topic_is_given_twice,
        a_refused_deletion_frees_a_place,
        a_deletion_after_both_frees_a_place,
    ),
}
