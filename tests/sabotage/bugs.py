"""The bugs planted in the store. Each was made, or nearly made, in a store like ours."""

from typing import Final

from planting import Bug, Edit

_STORE: Final = "tianzhou.store.store:MessageStore."
_RECOVERY: Final = "tianzhou.store.recovery:"
_QUEUE: Final = "tianzhou.store.consume_queue:ConsumeQueue."
_FLUSH: Final = "tianzhou.store.flush:Flusher."
_LOG: Final = "tianzhou.store.commit_log:CommitLog."
_INDEX: Final = "tianzhou.store.index_file:IndexFile."
_WORK: Final = "tianzhou.store.upkeep:QueueWork."
_UPKEEP: Final = "tianzhou.store.upkeep:Upkeep."
_OPENING: Final = "tianzhou.store.opening:"

_SYNC_LOG: Final = "self._log.sync(self.flushed, end)"
_MARK: Final = """marked = replace(self._checkpoint.current, flushed=end, log_timestamp=timestamp)
        self._checkpoint.write(marked, sync=False)"""


def _bug(name: str, suite: str, *edits: tuple[str, str, str], seed: int = 0) -> Bug:
    return Bug(name, suite, seed, tuple(Edit(*edit) for edit in edits))


SYNCS: Final = (
    _bug("log not synced", "images", (_FLUSH + "flush", _SYNC_LOG, "pass")),
    _bug("name of a log file not synced", "images",
         ("tianzhou.store.segments:create", "files.sync_dir(directory)", "pass")),
    _bug("name of the root not synced", "images",
         ("tianzhou.store.files:make_lasting_dirs", "files.sync_dir(parent_of(new))", "pass")),
    _bug("cut not synced", "images", (_LOG + "cut", "tail.file.sync()", "pass"), seed=6),
    _bug("files behind the end removed together", "images",
         (_LOG + "_drop", "self._files.sync_dir(self.directory)", "pass")),
    _bug("queue files not synced", "images",
         (_FLUSH + "save", "_sync(self._files, path)", "pass")),
    _bug("names of queue files not synced", "images",
         (_FLUSH + "save", "self._files.sync_dir(path)", "pass")),
    _bug("gaps between queue files neither avoided nor repaired", "images",
         (_QUEUE + "_remove", "self._cache.files.sync_dir(self.directory)", "pass"),
         (_QUEUE + "remove_expired", "self._cache.files.sync_dir(self.directory)", "pass"),
         ("tianzhou.store.consume_queue:Queues.keep_expired", "repair=True", "repair=False"),
         seed=54),
    _bug("table not synced", "images",
         ("tianzhou.store.tables:Table._replace", "file.sync()", "pass"), seed=1),
    _bug("name of a table not synced", "images",
         ("tianzhou.store.tables:Table._replace", "self._files.sync_dir(directory)", "pass"),
         seed=5),
    _bug("checkpoint not synced", "images",
         ("tianzhou.store.checkpoint:CheckpointFile.write", "self._file.sync()", "pass")),
)  # fmt: skip

ORDER: Final = (
    _bug("checkpoint written before the sync", "images",
         (_FLUSH + "flush", _SYNC_LOG, f"{_MARK}\n        {_SYNC_LOG}")),
    _bug("checkpoint ahead of the truth", "images",
         (_FLUSH + "flush", "flushed=end, log_timestamp", "flushed=end + 64, log_timestamp")),
    _bug("queues not written before the checkpoint", "images",
         (_WORK + "whole", "self._queues.write_out()", "pass")),
    _bug("position ahead of the queues", "images",
         (_WORK + "begin", "dispatcher.position, dispatcher.anchor",
          "dispatcher._log.end, dispatcher.anchor"), seed=2),
    _bug("dispatch ahead of the flush", "images",
         (_STORE + "_visible_limit",
          "limit = self._flusher.flushed if", "limit = self.log.end if"), seed=1),
    _bug("messages expire before their ranks are saved", "images",
         (_UPKEEP + "remove_oldest",
          "        self.checkpoint(whole=wait)\n        self._wait_saved(wait)\n    return",
          "        pass\n    return"),
         (_UPKEEP + "_remove_expired", "current.derived, current.log_begin", "current.log_begin"),
         seed=14),
    _bug("old checkpoint believed during a rebuild", "images",
         ("tianzhou.store.checkpoint:CheckpointFile.distrust", "if self.current.exact:",
          "if False:"), seed=23),
)  # fmt: skip

RECOVERY: Final = (
    _bug("tail not cut on disk", "images",
         (_LOG + "cut", "tail.file.truncate(at)", "pass")),
    _bug("quarantine skipped", "images",
         (_RECOVERY + "_settle", "_quarantine(parts, halt.offset)", "'quarantine/none'")),
    _bug("files of deleted topics not removed after a crash", "images",
         (_OPENING + "make_parts", "queues.remove_set_aside()", "pass")),
    _bug("index not cut", "images",
         (_RECOVERY + "_load_derived", "_cut_index(parts)", "pass")),
    _bug("slots of the index not written", "images",
         (_INDEX + "write_some", "self._table is None or self._table.write_some()", "True")),
    _bug("entries of the index not written", "images",
         (_INDEX + "write_some", "self._entries.write_tail()", "pass")),
    _bug("queue cut only in memory", "images",
         (_QUEUE + "truncate", "file.truncate((end - last) * UNIT_BYTES)", "pass")),
    _bug("offsets not clamped", "images",
         (_OPENING + "open_parts", "tables.set_back(beyond)", "pass"), seed=22),
    _bug("records without checksum always taken", "images",
         (_RECOVERY + "_checked", "if not parts.checkpoint.exact:\n        return None",
          "return NOWHERE"), seed=4),
    _bug("new life of a topic skipped", "images",
         (_QUEUE + "append", "self._begin_again()", "pass")),
    _bug("unsynced bytes not written again", "dropped pages",
         (_OPENING + "_started_flusher",
          "recovery.rewrite_unsynced(parts.log, PhysicalOffset(found.flushed))", "pass")),
)  # fmt: skip

RECORDS: Final = (
    _bug("checksum not checked", "images",
         ("tianzhou.record.walk:is_sound",
          'if buffer[covered:end] == _CRC_NAME + crc_digits(crc) + b"\\x02":', "if crc >= 0:"),
         seed=11),
    _bug("torn records served", "images",
         ("tianzhou.record.walk:first_unsound", "for rank in suspects:", "for rank in ():"),
         seed=2),
    _bug("physical offset not compared", "images",
         ("tianzhou.record.walk:is_sound", "        and physical_offset == base + start\n", ""),
         seed=2),
    _bug("end of a file not marked", "images",
         ("tianzhou.store.commit_log:CommitLog._close_file",
          "current.file.pwrite(at, BLANK.pack(room, MAGIC_BLANK))", "pass")),
    _bug("wrong unit read", "images",
         (_QUEUE + "read", "(start - file_start) * UNIT_BYTES",
          "(start - file_start + 1) * UNIT_BYTES")),
    _bug("ranks with a gap after a restart", "images",
         (_STORE + "begin_writing", "int(queue.end)",
          "int(queue.end) + 1")),
    _bug("dispatch ends at invisible messages", "images",
         (_STORE + "dispatch", "if runs or dispatcher.position == before:", "if True:")),
    _bug("lock not taken", "images",
         ("tianzhou.store.layout:take_lock", 'files.lock(f"{root}/{LOCK}")',
          'files.create(f"{root}/{LOCK}", 0)')),
)  # fmt: skip

FAULTS: Final = (
    _bug("no fence after a failed sync", "faults",
         (_FLUSH + "flush", 'self._fence("the commit log", error)', "pass")),
    _bug("failed sync ignored", "faults",
         (_FLUSH + "flush", 'self._fence("the commit log", error)\n        return False', "pass")),
    _bug("failed sync tried again", "dropped pages",
         (_FLUSH + "flush", _SYNC_LOG,
          f"try:\n            {_SYNC_LOG}\n        except OSError:\n            {_SYNC_LOG}")),
    _bug("no fence after a failed write", "faults",
         (_STORE + "append", 'raise fence.fenced("writing the commit log", error) from error',
          "spans = []")),
    _bug("full disk taken for a broken one", "faults",
         (_LOG + "_refused", "if not is_shortage(error):", "if True:")),
    _bug("flush fails silently", "faults",
         (_STORE + "flush",
          "if not self.wait_flushed(self.log.end, timeout_ms / 1000):", "if False:")),
    _bug("directory stays locked after a failed start", "faults",
         (_STORE + "__init__", "lock.close()", "pass")),
)  # fmt: skip

HOSTILE: Final = (
    _bug(
        "layout bits taken from a client",
        "hostile",
        ("tianzhou.broker.writing.incoming:client_flag", "sys_flag &= ~flags.LAYOUT_MASK", "pass"),
        ("tianzhou.record.chunk:_rare_head", "entry.sys_flag & ~_LONG_HOSTS", "entry.sys_flag"),
    ),
    _bug(
        "lengths of a record believed",
        "hostile",
        (
            "tianzhou.store.derive:facts_of",
            "if body_size < 0 or topic_at + 3 > end:",
            "if False:",
        ),
    ),
    _bug(
        "malformed record stops dispatch",
        "hostile",
        (
            "tianzhou.store.derive:derive_plainly",
            "except RecordDamaged as error:",
            "except ZeroDivisionError as error:",
        ),
    ),
    _bug(
        "malformed record not reported",
        "hostile",
        (_STORE + "dispatch", "self.damage.skipped(dispatcher)", "pass"),
    ),
    _bug(
        "tries counted beyond an int",
        "hostile",
        (
            "tianzhou.broker.ingest.retry:_with_retry",
            "min(view.reconsume_times + 1, INT32_MAX)",
            "view.reconsume_times + 1",
        ),
    ),
    _bug(
        "own topic takes messages of clients",
        "hostile",
        ("tianzhou.broker.names:is_own", "or topic.startswith(SYSTEM_PREFIX)", ""),
    ),
    _bug(
        "progress of transactions set by a client",
        "hostile",
        (
            "tianzhou.broker.groups.groups:check_commit",
            "if name.startswith(names.SYSTEM_GROUP_PREFIX):",
            "if False:",
        ),
    ),
    _bug(
        "message acknowledged that no queue holds",
        "hostile",
        ("tianzhou.broker.ingest.admission:_outside_transaction", "if not kind:", "if True:"),
    ),
    _bug(
        "retry taken for the commit of another half",
        "hostile",
        (
            "tianzhou.broker.transactions.decisions:_is_decided",
            "if stored.view.reconsume_times:",
            "if False:",
        ),
    ),
    _bug(
        "unreadable bytes taken for the end of the log",
        "hostile",
        (
            "tianzhou.store.scan:LogScan.__iter__",
            "is_bare = is_whole and found.stop is Stop.END",
            "is_bare = True",
        ),
    ),
)

_START: Final = "tianzhou.store.opening:StartReport."
_INCIDENTS: Final = "tianzhou.store.incidents:Incidents."

_WRITE: Final = "make_lasting_dirs(files, paths.root); files.create(f'{paths.root}/{now_ms}', 0)"

LOSSES: Final = (
    _bug("log that ends early opened silently", "losses",
         (_OPENING + "take",
          "if shortfall is not None and not (lenient or shortfall.may_open(config)):",
          "if False:")),
    _bug("missing log taken for a new store", "losses",
         ("tianzhou.store.preflight:_check_new", "if not evidence:", "if True:")),
    _bug("directory written to before it is examined", "losses",
         (_OPENING + "take", "shortfall = preflight.examine(",
          f"{_WRITE}\n    shortfall = preflight.examine(")),
    _bug("offsets of lost messages used again", "losses",
         (_RECOVERY + "keep_ends", "if end > (queue.end if queue else 0):", "if False:")),
    _bug("offsets that only the log knew used again", "losses",
         (_RECOVERY + "keep_ends", "if incidents.skipped:", "if False:")),
    _bug("ends of queues kept in memory alone", "losses",
         (_INCIDENTS + "_save", "self._table.save(changed)", "pass")),
    _bug("accepted loss not reported", "losses",
         (_OPENING + "open_parts", "report.log_ended_early(shortfall)", "pass")),
    _bug("log that starts late opened silently", "losses",
         (_OPENING + "open_parts", "report.log_begins_late(late)", "pass")),
    _bug("expired files removed without a record", "images",
         (_UPKEEP + "_remove_expired", "current.log_begin)", "self._flusher._begin_wanted)"),
         (_FLUSH + "_save_begin", "self._checkpoint.write(marked, sync=True)", "pass")),
    _bug("quarantine not reported", "images",
         (_START + "recovered", "for name in set_aside:", "for name in ():")),
    _bug("offsets set back silently", "images",
         (_START + "recovered", "if beyond and not self.is_repaired:", "if False:"), seed=22),
    _bug("loss acknowledged without an operator", "images",
         (_INCIDENTS + "report", "if not new:", "if True:")),
)  # fmt: skip

SHORTAGES: Final = (
    _bug(
        "checkpoint that can't be opened fences the store",
        "shortages",
        (_FLUSH + "save", "if not is_unopened(error):", "if True:"),
    ),
    _bug(
        "files of a checkpoint that was put off are forgotten",
        "shortages",
        (_FLUSH + "_with_owed", "if self._owed is not None:", "if False:"),
    ),
    _bug(
        "file left behind by each attempt to create it",
        "no memory",
        ("tianzhou.store.files:creating", "files.remove(path)", "pass"),
    ),
    _bug(
        "lack of memory in dispatch not handled",
        "no memory",
        (_STORE + "dispatch", "(OSError, MemoryError, StoreDamaged)", "(OSError, StoreDamaged)"),
    ),
    _bug(
        "lack of memory taken for a broken disk",
        "no memory",
        ("tianzhou.store.descriptors:is_unopened", "MemoryError | NotOpened", "NotOpened"),
        ("tianzhou.store.descriptors:is_shortage", "is_unopened(error) or (", "("),
    ),
    _bug(
        "file that can't be created taken for a broken disk",
        "shortages",
        (_LOG + "_refused", "if not is_shortage(error):", "if error.errno != 28:"),
    ),
)

LIGHT_QUEUES: Final = (
    _bug("slot of a light queue not counted", "light images",
         ("tianzhou.store.commit_log:NextOffsets.assign_light",
          "ends[queue] = offset + 1", "ends[queue] = offset")),
    _bug("light queues not derived in a loop", "light images",
         ("tianzhou.store.derive:facts_of", "light = _light_queues(found)", "light = []")),
    _bug("light queues not derived by columns", "light images",
         ("tianzhou.store.derive:_one_by_one", "columns.light +=", "_ =")),
)  # fmt: skip

BUGS: Final = (
    *LOSSES,
    *LIGHT_QUEUES,
    *SHORTAGES,
    *SYNCS,
    *ORDER,
    *RECOVERY,
    *RECORDS,
    *FAULTS,
    *HOSTILE,
)
