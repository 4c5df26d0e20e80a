"""Bugs planted in how a broker and clients follow their NameServers."""

from typing import Final

from planting import Bug, Edit

_REGISTRATION: Final = "tianzhou.broker.replica.registration:Registration."


def _bug(name: str, check: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, check, 0, tuple(Edit(*edit) for edit in edits))


NAME_SERVER_BUGS: Final = (
    _bug("a removed NameServer keeps the broker", "removed",
         (_REGISTRATION + "_leave_removed", "self._connections.removed()", "()")),
    _bug("a removed NameServer reports the broker as missing", "removed",
         (_REGISTRATION + "_leave", "await self._unregister(server)", "pass")),
    _bug("a client takes the word of a NameServer without brokers", "empty",
         ("tianzhou.client.session.name_servers:NameServers._ask_others",
          "if address != self._current", "if False")),
    _bug("a client keeps its old list", "list",
         ("tianzhou.client.session.shared_client:SharedClient.update_name_servers",
          "shared.nameservers.replace(nameservers)", "pass")),
)  # fmt: skip
