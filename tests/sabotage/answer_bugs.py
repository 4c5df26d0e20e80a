"""Bugs planted in what RocketMQ's clients and tools notice, and in the tools of the store.

The suite of a bug is the test that must catch it, as `module:function`.
"""

from typing import Final

from planting import Bug, Edit

_PULL: Final = "tianzhou.broker.fetch.pull:PullAdmission."
_DERIVATION: Final = "tianzhou.store.derivation:Derivation."


def _bug(name: str, test: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, test, 0, tuple(Edit(*edit) for edit in edits))


CLIENTS: Final = (
    _bug("unknown group not created for a Proxy",
         "test_admin_groups:"
         "test_get_group_config_of_an_unknown_group_obeys_auto_create",
         ("tianzhou.broker.groups.admin:AdminGroups.group_config",
          "self.groups.obtain(name) or self._get(name)", "self._get(name)")),
    _bug("newer subscription always refused",
         "test_pull:test_pull_newer_than_the_heartbeat_is_served_if_no_message_is_lost",
         (_PULL + "_newer", "if kind == TAG:", "if False:")),
    _bug("newer subscription served by an outdated expression",
         "test_pull:test_pull_newer_than_the_heartbeat_is_served_if_no_message_is_lost",
         (_PULL + "_subscribed", "if subscription.sub_version < request.sub_version:",
          "if False:")),
    _bug("flags of topic and group left out of a pull",
         "test_pull:test_pull_response_repeats_the_flags_of_topic_and_group",
         ("tianzhou.broker.fetch.pull:PullAdmission.check",
          "topic.topic_sys_flag, group.group_sys_flag", "0, 0")),
    _bug("pull forbidden without a type", "test_pull:test_pull_of_a_forbidden_group_is_rejected",
         ("tianzhou.broker.fetch.pull:forbidden", '{"forbiddenType": str(kind)}', "{}")),
    _bug("send answered without the transaction id",
         "test_send:test_send_response_has_the_unique_id_as_transaction_id",
         ("tianzhou.broker.ingest.send:SendResponses.full",
          "if unique is not None and not is_batch:", "if False:")),
    _bug("integers with leading zeros refused",
         "test_wire_fields:test_from_ext_accepts_integers_in_java_spelling",
         ("tianzhou.wire.codec:_with_plain_integers", "if _JAVA_INTEGER.fullmatch(value):",
          "if False:")),
    _bug("facts that tools need not shown",
         "test_settable:test_runtime_config_table_has_the_keys_that_rocketmq_tools_read",
         ("tianzhou.broker.runtime_config:RuntimeConfig.table", "**_FIXED,", "")),
    _bug("setting that is shown called unknown",
         "test_settable:test_runtime_config_change_knows_every_setting_of_the_table",
         ("tianzhou.broker.runtime_config:_check_names", "if key in _NEVER]", "if not key]")),
    _bug("parked transactions forgotten by a restart",
         "test_admin_waiting:test_parked_transactions_are_listed_counted_and_alarmed",
         ("tianzhou.broker.transactions.parked:ParkedTransactions.begin", "self._scanned = 0",
          "self._scanned = self._store.max_offset(PARKED_QUEUE)")),
    _bug("resumed transaction stays parked",
         "test_admin_waiting:"
         "test_parked_transaction_resumed_is_pending_and_not_listed",
         ("tianzhou.broker.transactions.parked:ParkedTransactions.__iter__", "iter(self._parked)",
          "iter(range(self._scanned))")),
)  # fmt: skip

SERVERS: Final = (
    _bug(
        "nested greeting ends a member's link",
        "test_raft_peers:test_frame_nested_too_deeply_has_no_fields",
        ("tianzhou.replication.raft_peers:_json", "(ValueError, RecursionError)", "ValueError"),
    ),
    _bug(
        "fenced store raises no alarm",
        "test_store_alarms:test_store_alarms_report_a_broken_store",
        (
            "tianzhou.broker.observe.health:StoreAlarms._store",
            "holds=store.is_broken",
            "holds=False",
        ),
    ),
    _bug(
        "variables of the environment ignored",
        "test_server_settings:test_server_settings_later_source_wins_in_any_spelling",
        (
            "tianzhou.cmd.server_settings:Given.take_all",
            "self._take_environment(environment,",
            "self._take_environment({},",
        ),
    ),
    _bug(
        "NameServer of the environment ignored",
        "test_nameserver_addresses:test_nameserver_from_prefers_our_variable_to_rocketmqs",
        (
            "tianzhou.base.nameserver_addresses:nameserver_from",
            'environment.get(name, "").strip()',
            '""',
        ),
    ),
)

STORES: Final = (
    _bug(
        "unreadable page fails the whole read",
        "test_read:test_read_of_an_unreadable_page_reports_damage_to_its_records_only",
        ("tianzhou.store.read:_read_one", "suppress(OSError)", "suppress(ZeroDivisionError)"),
    ),
    _bug(
        "paths of the settings ignored",
        "test_store_layout:test_paths_are_in_the_directory_unless_configured",
        (
            "tianzhou.store.layout:paths_of",
            'config.commit_log_path or f"{root}/{COMMIT_LOG}"',
            'f"{root}/{COMMIT_LOG}"',
        ),
    ),
    _bug(
        "DLedger's directory taken for an empty store",
        "test_preflight:test_open_with_an_unreadable_layout_is_rejected",
        ("tianzhou.store.preflight:_check_layout", "name.startswith(dledger.PREFIX)", "False"),
    ),
    _bug(
        "deleted topic taken for damage",
        "test_derivation:test_verify_of_a_deleted_and_recreated_topic_is_clean",
        (_DERIVATION + "live", "if bound is None:", "if True:"),
    ),
    _bug(
        "rebuild with the delay levels of the defaults",
        "test_derivation:test_verify_and_rebuild_use_the_delay_levels_of_the_directory",
        (
            "tianzhou.store.detect:detect",
            "delay_levels_ms=levels",
            "delay_levels_ms=config.delay_levels_ms",
        ),
    ),
    _bug(
        "older messages derived with today's delay levels",
        "test_derivation:test_changed_delay_levels_keep_the_times_of_older_messages",
        (_DERIVATION + "parts", "levels = self._stored.delay_levels", "levels = ()"),
    ),
)

TESTING: Final = (
    _bug(
        "tests impatient on a busy machine",
        "test_kit_patience:test_patience_on_a_crowded_machine_lasts_longer_in_proportion",
        ("tianzhou.testing.kit.patience:Patience.is_over", " / self._crowding()", ""),
    ),
    _bug(
        "tests impatient in spite of progress",
        "test_kit_patience:test_patience_restarts_after_progress",
        ("tianzhou.testing.kit.patience:Patience.is_over", "if self._seen == before:", "if True:"),
    ),
)

BUGS: Final = (*CLIENTS, *SERVERS, *STORES, *TESTING)
