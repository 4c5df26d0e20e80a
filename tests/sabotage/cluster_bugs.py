"""Bugs planted in what an operator sees of a cluster: names, missing brokers, findings, lag."""

from typing import Final

from planting import Bug, Edit

_ROUTES: Final = "tianzhou.nameserver.routes:"
_MISSING: Final = "tianzhou.nameserver.missing:MissingBrokers."
_FINDINGS: Final = "tianzhou.client.core.findings:"


def _bug(name: str, check: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, check, 0, tuple(Edit(*edit) for edit in edits))


CLUSTER_BUGS: Final = (
    _bug("second broker takes the name of a live one", "names",
         (_ROUTES + "_is_taken", "return ours == theirs or not ours or not theirs",
          "return False")),
    _bug("name taken by any higher epoch", "names",
         (_ROUTES + "_is_taken", "or not ours or not theirs", "or not ours")),
    _bug("promoted slave refused", "names",
         (_ROUTES + "_is_taken", "return ours == theirs or not ours or not theirs",
          "return True")),
    _bug("name of a silent broker never released", "names",
         (_ROUTES + "_is_taken", "if now_s - old.heard_s > old.timeout_s:", "if False:")),
    _bug("broker that dialled again refused", "names",
         (_ROUTES + "_is_taken", "or old.address == wanted.address ", "")),
    _bug("topics of a lost broker forgotten", "missing",
         (_ROUTES + "RouteTable._lose", "rows = self.topics.rows_of_broker(group.name)",
          "rows = {}")),
    _bug("missing broker stays missing after its return", "missing",
         (_MISSING + "registered", "self._rows.pop((name, address), None)", "None")),
    _bug("promoted slave hides the missing master", "missing",
         (_MISSING + "registered", "if was_known:", "if False:")),
    _bug("missing brokers not bounded", "missing",
         (_MISSING + "_add", "if len(self._rows) >= self._brokers_max:", "if False:")),
    _bug("broker that died with its NameServer forgotten", "missing",
         (_MISSING + "overdue", "self._add(row)", "pass")),
    _bug("promoted slave hides a master that is not back", "missing",
         (_MISSING + "registered", "was_known |= ", "")),
    _bug("broker that another NameServer knows called missing", "findings",
         (_FINDINGS + "_vanished_findings", "for row in view.vanished:",
          "for row in (one for look in view.nameservers.values() for one in look.missing):")),
    _bug("alarms of slaves left out", "findings",
         (_FINDINGS + "_place_findings", "if member is not None:",
          "if member is not None and not broker_id:")),
    _bug("stuck group without an event not reported", "findings",
         (_FINDINGS + "_row_sentences", "if row.stuck and not reported:", "if False:")),
    _bug("internal groups reported", "findings",
         (_FINDINGS + "_group_findings", "if not is_internal_group(name) and", "if")),
    _bug("one finding for each queue", "findings",
         (_FINDINGS + "_event_sentences", "alike.setdefault(event.kind, [])",
          "alike.setdefault(f'{event.kind}-{event.queue_id}', [])")),
    _bug("dead letters counted as lag", "lag",
         ("tianzhou.broker.groups.lags:Lags.all", "or topic.startswith(names.DEAD_PREFIX)", "")),
    _bug("internal groups counted as lag", "lag",
         ("tianzhou.broker.groups.lags:Lags.all", "names.is_system_group(group) or ", "")),
    _bug("alarm logged again and again", "alarms",
         ("tianzhou.broker.alarms:AlarmLog.check", "self._known = current", "pass")),
    _bug("end of an alarm not logged", "alarms",
         ("tianzhou.broker.alarms:AlarmLog.check", "if key not in current:", "if False:")),
)  # fmt: skip
