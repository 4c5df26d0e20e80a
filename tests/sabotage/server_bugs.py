"""Bugs planted in connection admission, event loop turns, waits, the log, and runtime settings.

The suite of a bug is the test that must catch it, as `module:function`.
"""

from typing import Final

from planting import Bug, Edit

_PORT: Final = "tianzhou.net.admission:PortAdmission."
_TURNS: Final = "tianzhou.net.server_connection:Turns."
_GUARD: Final = "tianzhou.net.log_guard:"
_BROKER: Final = "tianzhou.broker."
_RETENTION: Final = (
    "test_admin_broker:test_config_change_of_retention_keeps_files_of_waiting_messages"
)


def _bug(name: str, test: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, test, 0, tuple(Edit(*edit) for edit in edits))


CONNECTIONS: Final = (
    _bug(
        "silent connections without a bound",
        "test_acceptor:test_acceptor_over_the_unproven_limit_closes_the_oldest",
        (_PORT + "admit", "len(self._unproven) >= self._unproven_max\n", "False\n"),
    ),
    _bug(
        "room made without closing a connection",
        "test_acceptor:test_acceptor_over_the_unproven_limit_closes_the_oldest",
        (_PORT + "_make_room", "oldest.drop()", "oldest.release()"),
    ),
    _bug(
        "silent connections without a deadline",
        "test_acceptor:test_acceptor_closes_an_unproven_connection_at_its_deadline",
        (_PORT + "_expire", "oldest.drop()", "oldest.release()"),
    ),
    _bug(
        "pages take the places of probes",
        "test_acceptor:test_acceptor_that_serves_unproven_peers_keeps_slots_for_them",
        (_PORT + "prove", "len(self._proven) >= self._proven_max", "False"),
    ),
    _bug(
        "ports do not share the descriptors",
        "test_acceptor:test_descriptor_budget_is_divided_by_weight",
        (
            "tianzhou.net.admission:DescriptorBudget.share",
            "self._total * port.limits.weight // max(1, weights)",
            "self._total",
        ),
    ),
    _bug(
        "places of ended connections lost",
        "test_acceptor:test_acceptor_full_of_proven_connections_closes_new_ones",
        (_PORT + "released", "self._proven.discard(slot)", "pass"),
    ),
    _bug(
        "a port that stopped listening keeps its share",
        "test_acceptor:test_descriptor_budget_is_divided_by_weight",
        (_PORT + "close", "self._budget.leave(self)", "pass"),
    ),
)

TURNS: Final = (
    _bug(
        "long turns not counted",
        "test_turns:test_turns_in_a_full_round_may_begin_only_if_short",
        (_TURNS + "_count", "self._spent_s += seconds", "pass"),
    ),
    _bug(
        "cheap clients wait for heavy ones",
        "test_turns:test_turns_in_a_full_round_may_begin_only_if_short",
        (_TURNS + "may_begin", "or (cost_s is not None and cost_s <= SHORT_S)", ""),
    ),
    _bug(
        "all waiting clients served in one round",
        "test_turns:test_turns_of_waiting_connections_are_spread_over_rounds",
        (_TURNS + "_begin_round", "while self._spent_s < self._round_s:", "while True:"),
    ),
    _bug(
        "new clients wait behind heavy ones",
        "test_turns:test_turns_are_served_medium_first_then_new_then_long",
        (_TURNS + "wait", "self._new.append(resume)", "self._long.append(resume)"),
    ),
    _bug(
        "a link does not wait for its turn",
        "test_link:test_connection_turns_in_a_full_round_are_for_cheap_ones_only",
        (
            "tianzhou.net.server_connection:ServerConnection.buffer_updated",
            "if shared.turns.may_begin(self._turn.cost_s):",
            "if True:",
        ),
    ),
    _bug(
        "a turn produces without end",
        "test_link:test_connection_turn_ends_at_its_byte_limit",
        (
            "tianzhou.net.server_connection:ServerConnection.send",
            "self._out_bytes += len(data)",
            "pass",
        ),
    ),
)

LOG: Final = (
    _bug(
        "left out lines not counted",
        "test_log_guard:test_rate_limit_counts_suppressed_lines_within_and_after_a_burst",
        (_GUARD + "RateLimit.filter", "record.left_out = window.left_out", "pass"),
    ),
    _bug(
        "traces limited by peer and text",
        "test_log_guard:test_rate_limit_writes_few_tracebacks_of_one_error_for_any_text_and_peer",
        (_GUARD + "_kind_of", "record.exc_info[0] is not None", "False"),
    ),
)

SETTINGS: Final = (
    _bug(
        "changed message size has no effect",
        "test_admin_broker:test_config_change_of_the_message_size_applies_to_the_next_send",
        (
            _BROKER + "ingest.admission:Admission.adopt_store",
            "self.body_bytes_max = config.message_bytes_max",
            "pass",
        ),
    ),
    _bug(
        "filters that are switched off stay cached",
        "test_admin_broker:test_config_change_of_sql_filters_applies_to_cached_expressions",
        (_BROKER + "groups.groups:Filters.adopt", "self._cache.clear()", "pass"),
    ),
    _bug(
        "transactions keep their old timings",
        "test_admin_broker:test_config_change_of_transactions_applies_to_checks_and_sends",
        (_BROKER + "transactions.checks:TransactionChecks.adopt", "self._config = config", "pass"),
    ),
    _bug(
        "changed retention has no effect",
        _RETENTION,
        (
            "tianzhou.store.store:MessageStore.adopt",
            "self.config = self.retention.config = config",
            "self.config = config",
        ),
    ),
    _bug(
        "shorter retention takes messages that wait",
        _RETENTION,
        (_BROKER + "replica.expiry_floor:ExpiryFloor._own", "self._timers.progress().low", "None"),
    ),
    _bug(
        "replica expires messages that wait",
        "test_expiry_floor:test_slave_keeps_files_of_messages_that_a_promotion_needs",
        (
            _BROKER + "replica.expiry_floor:ExpiryFloor.__call__",
            "self._of_replica()",
            "Progress(timers=None, halves=1 << 40, delays={})",
        ),
    ),
    _bug(
        "store settings changed without proof",
        "test_settable:test_runtime_config_change_of_the_store_unauthenticated_is_rejected",
        (_BROKER + "runtime_config:RuntimeConfig.change", "before_shared()", "pass"),
    ),
    _bug(
        "clients without an id taken for one",
        "test_client_liveness:test_heartbeats_without_a_client_id_are_keyed_by_connection",
        (
            _BROKER + "groups.heartbeats:Clients.heartbeat",
            "data.client_id or peer.remote",
            "data.client_id",
        ),
    ),
    _bug(
        "deletion removes queues that continue after it",
        "test_removal:test_delete_topic_before_an_offset_keeps_queues_that_continue_after_it",
        ("tianzhou.store.upkeep:Removals.delete", "before=before", "before=None"),
    ),
    _bug(
        "files of a deleted topic left behind by a crash",
        "test_removal:test_open_after_a_crash_removes_files_of_deleted_queues",
        ("tianzhou.store.opening:make_parts", "queues.remove_set_aside()", "pass"),
    ),
    _bug(
        "messages stored before their topic is saved",
        "test_topics:test_retry_topic_that_gets_a_message_survives_a_kill_at_once",
        (_BROKER + "topics.topics:Topics._save_unsaved", "if name in self._unsaved:", "if False:"),
    ),
    _bug(
        "a slave keeps offsets of a deleted topic",
        "test_accepted_offsets:test_follow_removes_rows_of_a_deleted_topic_or_group",
        (
            _BROKER + "groups.consumer_offsets:ConsumerOffsets.follow",
            "self.resets.latest(key, EVERY_QUEUE)",
            "False",
        ),
    ),
    _bug(
        "commits beyond the end accepted",
        "test_commit_bound:test_commit_beyond_the_end_at_a_master_is_rejected",
        (_BROKER + "groups.consumer_offsets:Offsets.update", "if end is not None:", "if False:"),
    ),
    _bug(
        "commits in pulls not bounded",
        "test_commit_bound:test_commit_in_a_pull_beyond_the_end_is_ignored",
        (_BROKER + "fetch.pull:Pull._commit", "if end is None:", "if True:"),
    ),
    _bug(
        "emptied namespaces forgotten",
        "test_kv:test_kv_namespace_emptied_differs_from_one_never_used",
        ("tianzhou.nameserver.kv:KvTable.delete", "self._remember(namespace)", "pass"),
    ),
)

_NAMES_IT = "test_notices:test_notice_names_the_topic_whose_queues_or_permission_changed"

NOTICES: Final = (
    _bug(
        "a change of a permission is not reported",
        _NAMES_IT,
        (_BROKER + "topics.topics:_route", ", topic.perm)", ")"),
    ),
    _bug(
        "readers hear of a change before the NameServers",
        _NAMES_IT,
        (
            _BROKER + "topics.topics:Topics.put",
            "if not wait:",
            "self.announce(topic.topic_name for topic in topics)\n        if not wait:",
        ),
    ),
    _bug(
        "a change during a registration is reported with it",
        "test_notices:test_notice_of_a_change_during_a_registration_follows_the_next_one",
        (
            _BROKER + "topics.topics:Topics.begin_registration",
            "report(rerouted)",
            "report(rerouted | self._rerouted)",
        ),
    ),
    _bug(
        "an update without a change is not reported",
        "test_notices:test_notice_of_an_update_without_a_change_is_sent",
        (
            _BROKER + "topics.admin:AdminTopics._put",
            "self.topics.announce(topic.topic_name for topic in checked)",
            "pass",
        ),
    ),
    _bug(
        "notices are not coalesced",
        "test_notices:test_notices_of_a_thousand_updates_are_coalesced",
        (_BROKER + "groups.notices:Notices.tick", "self._next_s = now_s + PAUSE_S", "pass"),
    ),
    _bug(
        "a slave repeats the notices of its master",
        "test_notices:test_notices_of_topics_are_not_sent_by_a_slave",
        (_BROKER + "groups.notices:Notices.tick", "if self._role_state.is_master:", "if True:"),
    ),
)

_FAIL_FAST: Final = _BROKER + "ingest.send:Send._in_time"

WAITS: Final = (
    _bug(
        "sends rejected as busy and stored nevertheless",
        "test_fail_fast:test_send_that_waited_too_long_is_rejected_and_not_stored",
        (_FAIL_FAST, "return oneway", "return indexes"),
    ),
    _bug(
        "one-way sends dropped",
        "test_fail_fast:test_send_oneway_is_stored_however_long_it_waited",
        (_FAIL_FAST, "oneway.append(index)", "pass"),
    ),
    _bug(
        "a stalled disk forgotten once its senders timed out",
        "test_fail_fast:test_send_behind_a_stalled_disk_is_rejected_after_the_others_timed_out",
        (
            _BROKER + "writing.log_writer:Acks.expire",
            "self._expired = Unconfirmed(parked.end, since)",
            "pass",
        ),
    ),
    _bug(
        "a disk that moves again taken for stalled",
        "test_fail_fast:test_send_behind_a_stalled_disk_is_rejected_after_the_others_timed_out",
        (
            _BROKER + "writing.log_writer:Writer.stall",
            "if self._durability.verdict(oldest.end) is not None:",
            "if False:",
        ),
    ),
    _bug(
        "what arrived during a pause dated after it",
        "test_arrivals:test_pulse_after_a_pause_dates_the_reads_of_two_rounds_before_it",
        (
            "tianzhou.net.arrivals:Pulse._detect",
            "self._loop.call_soon(self._loop.call_soon, self._forget)",
            "self._loop.call_soon(self._forget)",
        ),
    ),
    _bug(
        "bytes in the kernel dated when they are read",
        "test_arrivals:test_arrival_of_bytes_that_the_kernel_had_is_when_it_was_asked",
        (
            "tianzhou.net.arrivals:Arrival.read",
            "self.at_s = min(self.at_s, self.unread_at_s)",
            "pass",
        ),
    ),
)

BUGS: Final = (*CONNECTIONS, *TURNS, *LOG, *SETTINGS, *NOTICES, *WAITS)
