"""Bugs planted in replication, each with the test that must catch it.

Each lost acknowledged messages, made a reader skip some, or counted an unknown peer as a replica.
"""

from typing import Final

from planting import Bug, Edit

_PLAIN: Final = "tianzhou.replication.ha_plain:"
_SLAVE: Final = "tianzhou.replication.ha_slave:_Following."
_MASTER: Final = "tianzhou.replication.ha_master:HaMaster."
_ACCEPTED: Final = "tianzhou.broker.groups.accepted_offsets:AcceptedOffsets."


def _bug(name: str, test: str, *edits: tuple[str, str, str]) -> Bug:
    """`test` is `module:function`, below tests/unit."""
    return Bug(name, test, 0, tuple(Edit(*edit) for edit in edits))


PEERS: Final = (
    _bug("every address admitted without a greeting",
         "test_ha_master:test_s32_report_without_a_greeting_gets_no_log_and_is_not_a_replica",
         (_PLAIN + "PlainPeers.admits",
          "any((mapped or address) in network for network in self.networks)", "True")),
    _bug("silent master followed without a greeting",
         "test_ha_plain:test_slave_greets_a_silent_master_again_and_never_follows_it",
         (_SLAVE + "_on_greeting_timeout", "not why_not", "True"),
         (_SLAVE + "_begin_plain", "if reason:", "if False:")),
    _bug("stale tail not compared",
         "test_ha_plain:test_slave_with_a_stale_tail_rejects_a_listed_master",
         (_PLAIN + "Overlap.strip", "if data[: len(ours)] != ours:", "if False:")),
    _bug("unproven slave counted as a replica",
         "test_ha_master:test_master_counts_a_listed_plain_slave_only_if_configured",
         (_MASTER + "acked", "one.session.counts", "one.session.is_streaming")),
    _bug("unproven slave waited for",
         "test_ha_master:test_master_counts_a_listed_plain_slave_only_if_configured",
         (_MASTER + "_is_near", "session.counts", "session.is_streaming")),
    _bug("slave never proven",
         "test_ha_master:test_s32_slow_connections_do_not_keep_slaves_out",
         ("tianzhou.replication.ha_master:_Connection.data_received",
          "if not self._slot.prove():", "if False:")),
    _bug("peer proven before it streams",
         "test_ha_master:test_s32_slow_connections_do_not_keep_slaves_out",
         ("tianzhou.replication.ha_master:_Connection.connection_made",
          "self._master.connections.add(self)",
          "self._master.connections.add(self)\n    self._slot.prove()")),
)  # fmt: skip

EPOCHS: Final = (
    _bug(
        "one epoch of two masters settled",
        "test_ha_session:test_session_slave_of_another_master_of_the_same_epoch_is_rejected",
        ("tianzhou.replication.ha_epochs:check_unique", "for mark in theirs:", "for mark in ():"),
    ),
    _bug(
        "earlier master registers while the latest is dead",
        "test_epochs:test_epochs_reject_an_earlier_master_even_if_the_latest_is_gone",
        ("tianzhou.nameserver.epochs:Epochs.admits", "return epoch > latest.epoch", "return True"),
    ),
    _bug(
        "second master of one epoch registers",
        "test_epochs:test_epochs_reject_a_second_promoted_master_of_one_epoch",
        ("tianzhou.nameserver.epochs:Epochs.admits", "wanted.epoch_token == latest.token", "True"),
    ),
    _bug(
        "epoch used that another slave has claimed",
        "test_promotion:test_claimed_epoch_of_another_broker_is_not_used",
        (
            "tianzhou.broker.replica.master_slave:RoleChanges._on_newer_epoch",
            "self.machine.handle(Event.CLAIM_LOST)",
            "pass",
        ),
    ),
    _bug(
        "last epoch exceeded",
        "test_role_change:test_next_epoch_never_exceeds_what_can_be_stored",
        ("tianzhou.broker.replica.role_change:next_epoch", "if epoch > EPOCH_MAX:", "if False:"),
    ),
)

GUARANTEES: Final = (
    _bug(
        "required replicas lowered by anyone",
        "test_ack_policy:test_replica_count_below_the_minimum_is_rejected",
        (
            "tianzhou.broker.replica.ack_policy:check_replica_count",
            "if count < least:",
            "if False:",
        ),
    ),
    _bug(
        "unsigned promotion executed",
        "test_cluster_proof:test_cluster_request_without_a_valid_signature_is_rejected",
        (
            "tianzhou.broker.access.cluster_proof:ClusterProof.check",
            "if self._pair is None or",
            "if True or",
        ),
    ),
)

OFFSETS: Final = (
    _bug("offsets committed at a slave not saved",
         "test_accepted_offsets:test_accepted_offset_survives_a_restart_of_the_slave",
         (_ACCEPTED + "save",
          "self._table.save(ConsumerOffsetTable(offset_table=self._rows, tz_resets=resets))",
          "pass")),
    _bug("offsets committed at a slave not cut back with the log",
         "test_accepted_offsets:test_accepted_offset_is_lowered_with_the_end_of_the_log",
         (_ACCEPTED + "clamp", "row[queue_id] = end", "pass")),
    _bug("reset undone by a slave",
         "test_accepted_offsets:test_accepted_offset_is_replaced_by_a_reset_at_the_master",
         (_ACCEPTED + "record_master", " or went_back", "")),
    _bug("reset before the hand-over undone by a slave",
         "test_accepted_offsets:"
         "test_accepted_offset_is_replaced_by_a_reset_of_a_returning_master",
         (_ACCEPTED + "record_master", " or was_reset", "")),
    _bug("resets of the last master forgotten by a slave",
         "test_accepted_offsets:"
         "test_old_master_that_follows_keeps_commits_after_its_own_resets",
         ("tianzhou.broker.groups.consumer_offsets:ConsumerOffsets.begin_following",
          "accepted.resets.merge(self.resets.rows())", "pass")),
    _bug("loss at a master taken for a reset",
         "test_accepted_offsets:"
         "test_accepted_offset_is_kept_when_the_master_lost_its_own",
         (_ACCEPTED + "reconnected", "self._master = {}", "pass")),
    _bug("late offset moves a group back",
         "test_accepted_offsets:test_accepted_offset_of_a_slave_never_moves_a_group_back",
         ("tianzhou.broker.groups.consumer_offsets:ConsumerOffsets.advance",
          "if offset > (self.get(group, topic, queue_id) or 0):", "if True:")),
)  # fmt: skip

_PULLING: Final = "tianzhou.client.core.pulling:"

READING: Final = (
    _bug("end of a slave taken for the end of the queue",
         "test_client_pulling:test_end_of_a_slave_is_not_the_end_of_the_queue",
         (_PULLING + "is_usable", "if at == MASTER:", "if True:")),
    _bug("messages that only a slave lacks taken for lost",
         "test_client_pulling:test_gap_in_the_messages_of_a_slave_is_not_a_loss",
         (_PULLING + "is_usable", "progress == count > 0", "progress > 0")),
    _bug("slave that failed asked again at once",
         "test_client_pulling:test_reader_leaves_a_slave_that_failed_for_a_while",
         (_PULLING + "PullFrom.after_answer", "now_s < self.slaves_after_s", "False")),
)  # fmt: skip

_MEMBER: Final = "tianzhou.replication.raft_member:"

CONVERSIONS: Final = (
    _bug(
        "member before its log is synced",
        "test_raft_conversion:test_conversion_crash_leaves_the_old_broker_or_the_member",
        (_MEMBER + "convert", "store.flush()", "pass"),
    ),
    _bug(
        "member without the tables of the broker",
        "test_raft_conversion:test_conversion_crash_leaves_the_old_broker_or_the_member",
        (_MEMBER + "convert", "storage.append(tables, Term(term), lambda _: None)", "pass"),
    ),
    _bug(
        "list of an interrupted conversion trusted",
        "test_raft_conversion:test_conversion_lists_a_log_again_that_was_truncated",
        (_MEMBER + "_drop_stale", "not _describes(log, last)", "False"),
    ),
    _bug(
        "log of a slave trusted without digests",
        "test_raft_conversion:test_conversion_of_a_log_that_is_not_a_copy_is_rejected",
        (_MEMBER + "_equal_rows", "if digest_of(data) != row.digest:", "if False:"),
    ),
    _bug(
        "old entries acknowledged before their rows are synced",
        "test_raft_conversion:test_joining_crash_leaves_a_log_that_the_leader_can_continue",
        ("tianzhou.replication.raft_storage:RaftStorage.write", "self._plain.sync()", "pass"),
    ),
)
"""A store without a group becomes a member."""

BUGS: Final = (*PEERS, *EPOCHS, *GUARANTEES, *OFFSETS, *READING, *CONVERSIONS)
