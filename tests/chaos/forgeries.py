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
    both_forget,
    both_hold,
    change_send,
    change_slave_log,
    delivery_of,
    old_master_serves_a_message_and_drops_it,
    place_of,
    retention_removes_messages_from,
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


def middle_message_is_lost(case: Case) -> None:
    both_forget(case, 6)


def message_is_only_on_the_slave(case: Case) -> None:
    del stored_on(case, 0)[place_of(19)]


def message_that_retention_removed_is_on_no_replica(case: Case) -> None:
    retention_removes_messages_from(case, 0)
    del stored_on(case, 1)[place_of(2)]


def message_is_gone_from_a_master_with_a_full_disk(case: Case) -> None:
    """It is after the first offset that retention left."""
    retention_removes_messages_from(case, 0)
    del stored_on(case, 0)[place_of(8)]


def offset_holds_another_message(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "thief", 130.0, FOREVER, Outcome.UNKNOWN))
    both_hold(case, place_of(19), "thief")


def acknowledged_offset_is_reused(case: Case) -> None:
    """Readers may have been misled, but two senders must not be given the same place."""
    old_master_serves_a_message_and_drops_it(case)
    first, second = case.history.sends[3], case.history.sends[4]
    case.history.sends[4] = replace(second, place=first.place)


def old_master_drops_an_acknowledged_message(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    case.history.sends[-1] = replace(
        case.history.sends[-1], ended=105.6, outcome=Outcome.OK, place=place_of(5)
    )


def old_master_serves_a_message_long_after(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    rows = case.history.deliveries
    rows[-1] = replace(rows[-1], at=130.0)


def old_master_serves_two_messages_at_one_offset(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    sends, rows = case.history.sends, case.history.deliveries
    sends.append(replace(sends[-1], value="other"))
    rows.append(replace(rows[-1], value="other"))


def offset_is_reused_though_no_master_hung(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    case.guarantees = replace(case.guarantees, old_master_resumes=False)


def reader_passed_an_offset_that_no_old_master_dropped(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    del case.history.deliveries[7]


def reader_moves_back_from_messages_that_no_old_master_dropped(case: Case) -> None:
    old_master_serves_a_message_and_drops_it(case)
    case.history.turns.append(Turn("reader-0", QUEUES[0], 7, 5, 105.9))


def stored_message_is_never_delivered(case: Case) -> None:
    del case.history.deliveries[7]


def undelivered_message_where_offsets_may_be_reused(case: Case) -> None:
    case.guarantees = replace(case.guarantees, keeps_places=False)
    del case.history.deliveries[19]


def message_is_delivered_only_to_another_group(case: Case) -> None:
    rows = case.history.deliveries
    rows[7] = replace(rows[7], group="others")


def one_of_two_groups_got_nothing(case: Case) -> None:
    case.guarantees = replace(case.guarantees, groups=(GROUP, "others"))


def value_that_was_never_sent_is_delivered(case: Case) -> None:
    stray = Delivery("reader-0", GROUP, "stray", Place(QUEUES[0], 10), 130.0)
    case.history.deliveries.append(stray)


def value_that_was_never_sent_is_stored(case: Case) -> None:
    both_hold(case, Place(QUEUES[0], 10), "stray")


def slave_alone_has_an_unknown_value(case: Case) -> None:
    stored_on(case, 1)[Place(QUEUES[0], 10)] = "stray"


def rejected_send_is_delivered(case: Case) -> None:
    change_send(case, 8, outcome=Outcome.REFUSED, place=None)


def delayed_message_is_delivered_early(case: Case) -> None:
    change_send(case, 8, kind=Kind.DELAYED, place=None, due=109.0)


def delayed_message_is_never_delivered(case: Case) -> None:
    change_send(case, 8, kind=Kind.DELAYED, place=None, due=108.2)
    both_forget(case, 8)


def delayed_message_is_delivered_twice_without_a_fault(case: Case) -> None:
    change_send(case, 8, kind=Kind.DELAYED, place=None, due=108.2)
    add_copy(case, 8, tries_max=1)


def delayed_message_is_delivered_twice_long_before_a_fault(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=125.0, ended=126.0))
    delayed_message_is_delivered_twice_without_a_fault(case)


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


def response_has_another_offset(case: Case) -> None:
    change_send(case, 8, place=place_of(10))


def offset_is_reused(case: Case) -> None:
    case.history.sends.append(Send("producer-1", "late", 131.0, 131.5, Outcome.OK, place_of(19)))


def readers_got_different_messages(case: Case) -> None:
    rows = case.history.deliveries
    case.history.deliveries.append(replace(rows[2], client="reader-1", place=place_of(4)))


def replicas_differ_in_one_message(case: Case) -> None:
    stored_on(case, 1)[place_of(4)] = "v6"


def slave_lacks_the_end(case: Case) -> None:
    del stored_on(case, 1)[place_of(19)]


def slave_with_a_full_disk_lacks_a_message(case: Case) -> None:
    """It is after the first offset that retention left."""
    retention_removes_messages_from(case, 1)
    del stored_on(case, 1)[place_of(8)]


def slave_lacks_messages_that_retention_kept(case: Case) -> None:
    for serial in range(4):
        del stored_on(case, 1)[place_of(serial)]


def slave_is_empty(case: Case) -> None:
    stored_on(case, 1).clear()


def slave_has_more_messages(case: Case) -> None:
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


def replica_is_damaged(case: Case) -> None:
    change_slave_log(case, problems=("queue 0 of chaos points at the wrong records",))


def later_send_is_stored_before_an_earlier_one(case: Case) -> None:
    one, other = place_of(4), place_of(12)
    both_hold(case, one, "v12")
    both_hold(case, other, "v4")
    change_send(case, 4, place=other)
    change_send(case, 12, place=one)
    rows = case.history.deliveries
    rows[4] = replace(rows[4], place=other)
    rows[12] = replace(rows[12], place=one)


def later_send_at_an_unknown_offset_is_stored_before_an_earlier_one(case: Case) -> None:
    later_send_is_stored_before_an_earlier_one(case)
    change_send(case, 4, place=None)
    change_send(case, 12, place=None)


def offset_is_assigned_twice(case: Case) -> None:
    change_send(case, 14, place=place_of(12))


def reader_moves_back(case: Case) -> None:
    case.history.turns.append(Turn("reader-0", QUEUES[0], 9, 0, 125.0))


def reader_skips_a_message(case: Case) -> None:
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


def group_passed_a_gap(case: Case) -> None:
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


def redelivery_without_a_cause(case: Case) -> None:
    case.history.deliveries.append(delivery_of(4, 107.0))


def redelivery_before_its_cause(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.deliveries.append(delivery_of(14, 117.0))


def redelivery_of_an_old_message(case: Case) -> None:
    case.history.troubles.append(replace(FAULT, began=118.0, ended=119.0))
    case.history.deliveries.append(delivery_of(2, 120.0))


def redeliveries_never_end(case: Case) -> None:
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


def successful_change_is_lost(case: Case) -> None:
    _changed(case, "6", 100)
    _changed(case, "7", 102)
    _views(case, "6", "6")


def rejected_change_took_effect(case: Case) -> None:
    _changed(case, "6", 100)
    _changed(case, None, 102, Outcome.REFUSED)
    _views(case, None, None)


def unknown_change_takes_effect_after_a_later_one(case: Case) -> None:
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


def reset_is_undone(case: Case) -> None:
    _changed(case, "6", 100)
    _reset(case, "3,4", 102)
    _reset(case, "0,0", 104)
    _offsets(case, "3,4", "3,4")


def offsets_remain_after_their_topic_is_deleted(case: Case) -> None:
    _changed(case, "6", 100)
    _reset(case, "3,4", 102)
    _changed(case, None, 104)
    _offsets(case, "3,4", "3,4")


def members_disagree_about_a_reset(case: Case) -> None:
    _changed(case, "6", 100)
    _reset(case, ANY, 102, Outcome.UNKNOWN)
    _offsets(case, "3,4", "0,0")


def rejected_deletion_removed_the_messages(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "kept", 102)
    _changed(case, None, 104, Outcome.REFUSED)
    _views(case, "6", "6")


def one_member_lost_the_messages_of_a_topic(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "kept", 102)
    _views(case, "6", "6", stored=("kept",))
    case.history.views[1].stored.clear()


def messages_return_at_another_offset(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "first", 102)
    _placed(case, "second", 103, offset=1)
    _views(case, "6", stored=("second", "first"))


def topic_offset_is_assigned_twice(case: Case) -> None:
    _changed(case, "6", 100)
    _placed(case, "first", 102)
    _placed(case, "second", 104)


def rejected_deletion_frees_an_offset(case: Case) -> None:
    topic_offset_is_assigned_twice(case)
    _changed(case, None, 103, Outcome.REFUSED)


def deletion_after_both_sends_frees_an_offset(case: Case) -> None:
    topic_offset_is_assigned_twice(case)
    _changed(case, None, 110)


WRONG: Final[dict[Rule, tuple[Callable[[Case], None], ...]]] = {
    checkers.nothing_acknowledged_is_lost: (
        last_message_is_lost,
        middle_message_is_lost,
        message_is_only_on_the_slave,
        message_that_retention_removed_is_on_no_replica,
        message_is_gone_from_a_master_with_a_full_disk,
        offset_holds_another_message,
        delayed_message_is_never_delivered,
        committed_message_is_lost,
    ),
    checkers.everything_is_delivered: (
        stored_message_is_never_delivered,
        undelivered_message_where_offsets_may_be_reused,
        message_is_delivered_only_to_another_group,
        one_of_two_groups_got_nothing,
        reader_passed_an_offset_that_no_old_master_dropped,
    ),
    checkers.nothing_is_invented: (
        value_that_was_never_sent_is_delivered,
        value_that_was_never_sent_is_stored,
        slave_alone_has_an_unknown_value,
        rejected_send_is_delivered,
    ),
    checkers.nothing_comes_early: (delayed_message_is_delivered_early,),
    checkers.transactions_end_as_decided: (
        rolled_back_message_is_delivered,
        rolled_back_message_is_visible_on_the_slave,
        committed_message_is_stored_twice,
    ),
    checkers.a_place_names_one_message: (
        response_has_another_offset,
        offset_is_reused,
        readers_got_different_messages,
        replicas_differ_in_one_message,
        offset_holds_another_message,
        acknowledged_offset_is_reused,
        old_master_drops_an_acknowledged_message,
        old_master_serves_a_message_long_after,
        old_master_serves_two_messages_at_one_offset,
        offset_is_reused_though_no_master_hung,
    ),
    checkers.replicas_hold_the_same: (
        slave_lacks_the_end,
        slave_with_a_full_disk_lacks_a_message,
        slave_lacks_messages_that_retention_kept,
        slave_is_empty,
        slave_has_more_messages,
    ),
    checkers.logs_are_the_same_bytes: (
        one_byte_of_the_log_differs,
        one_log_is_longer,
        logs_have_nothing_in_common,
        queues_of_the_slave_are_shorter,
        replica_is_damaged,
    ),
    checkers.order_is_kept: (
        later_send_is_stored_before_an_earlier_one,
        later_send_at_an_unknown_offset_is_stored_before_an_earlier_one,
        offset_is_assigned_twice,
    ),
    checkers.readers_do_not_go_back: (
        reader_moves_back,
        reader_moves_back_from_messages_that_no_old_master_dropped,
    ),
    checkers.readers_miss_nothing: (
        reader_skips_a_message,
        message_is_delivered_only_to_another_group,
    ),
    checkers.offsets_do_not_go_back: (
        committed_offset_drops,
        committed_offset_drops_too_far_after_a_fault,
        committed_offset_drops_briefly,
    ),
    checkers.offsets_follow_deliveries: (
        group_committed_an_undelivered_message,
        group_passed_a_gap,
    ),
    checkers.copies_are_explained: (
        duplicate_without_a_cause,
        duplicate_of_a_client_without_retries,
        duplicate_after_recovery,
        delayed_message_is_delivered_twice_without_a_fault,
        delayed_message_is_delivered_twice_long_before_a_fault,
    ),
    checkers.redeliveries_are_explained: (
        redelivery_without_a_cause,
        redelivery_before_its_cause,
        redelivery_of_an_old_message,
        redeliveries_never_end,
    ),
    checkers.no_slave_no_promise: (acknowledged_while_the_slave_was_cut_off,),
    change_rules.changes_are_linear: (
        successful_change_is_lost,
        rejected_change_took_effect,
        unknown_change_takes_effect_after_a_later_one,
        members_disagree_about_a_change,
        reset_is_undone,
        offsets_remain_after_their_topic_is_deleted,
        members_disagree_about_a_reset,
    ),
    change_rules.refused_deletions_delete_nothing: (
        rejected_deletion_removed_the_messages,
        one_member_lost_the_messages_of_a_topic,
        messages_return_at_another_offset,
    ),
    change_rules.places_of_topics_name_one_message: (
        topic_offset_is_assigned_twice,
        rejected_deletion_frees_an_offset,
        deletion_after_both_sends_frees_an_offset,
    ),
}
