"""Turns spec/*.toml and the tables of handlers into docs/compat.md and its Chinese twin.

python tools/gen_compat.py            write the files
python tools/gen_compat.py --check    write nothing; exit 1 if a file is stale

The Chinese texts are in tools/zh/compat.toml, by the number of the code.
"""

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tianzhou.broker import router as requests
from tianzhou.broker.rejections import REFUSED
from tianzhou.nameserver.handlers import HANDLERS
from tianzhou.testing.small_broker import SmallBroker

ROOT: Final = Path(__file__).resolve().parent.parent
CHINESE: Final = ROOT / "tools" / "zh" / "compat.toml"

NOTES: Final[Mapping[int, str]] = {
    12: "newest first; at most 64 messages and one frame",
    21: "pages when numbers are given",
    25: (
        "[settings](configuration.md) marked as live; in memory until the next start; any other "
        "key refuses the whole request; at this member of a group only"
    ),
    26: "RocketMQ's names where it has one; secrets are never shown",
    28: "thread pools do not exist here; what waits is shown under their names",
    33: "also half messages, as with RocketMQ",
    43: "what slaves ask their master for, RocketMQ's too",
    45: "what slaves ask their master for, RocketMQ's too",
    201: "pages when numbers are given",
    202: "a fresh topic lists its queues",
    208: "offsets of messages pulled and not yet confirmed are not kept: `pullOffset` is the other",
    215: "answers 0 for a topic that is not there",
    222: (
        "sets the committed offsets, whether consumers are online or not, and tells those that "
        "are; RocketMQ 4 answers 206 when none is"
    ),
    306: "queues are cleaned together with the log; does what is due",
    315: (
        "TOPIC_PUT_NUMS, TOPIC_PUT_SIZE, GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK_PUT_NUMS, "
        "BROKER_PUT_NUMS, BROKER_GET_NUMS"
    ),
    321: "at most 1,000 entries",
    323: "also of a half message that is not parked yet: its producer is asked now",
    402: "always empty: every group pulls",
    907: "slaves of a broker that replicates; without the speed of transfers",
    90001: "of our own: undecided transactions, the oldest first",
    90002: "Tianzhou's own: scheduled messages, the next one first",
    90010: "of our own, as the next five: what a page of the dashboard shows, in one answer",
}

HEAD: Final = """\
# Compatibility

[中文](compat.zh-CN.md)

Written by `tools/gen_compat.py` from `spec/` and the tables of handlers; do not edit.

## Clients and servers tested

| peer | version | what is proven | by make |
| --- | --- | --- | --- |
| Java client, remoting | 4.9.8, 5.3.3 | sends and consumes here, in groups with ours | interop |
| `mqadmin` | 4.9.8, 5.3.3 | administers a broker of ours; see below | interop |
| C++ client, PyPI `rocketmq` | 0.4.4 | sends and consumes here, in groups with ours | test |
| Go client, `rocketmq-client-go` | 2.1.2 | sends in every way it has, consumes here | interop |
| JavaScript client, npm `ali-ons` | 3.12.0 | its frames, kept as samples, are understood | test |
| Java broker | 4.9.7, 5.3.3 | our client and admin client work with it | interop |
| Java broker, replication | 4.9.7, 5.3.3 | slaves follow masters, both ways | interop |
| Java store directories | 4.9.8 | they open here, and those of ours there | test, interop |
| clients of RocketMQ 5 over gRPC | | refused: this is the remoting protocol only | |

Other clients of the remoting protocol send the same requests and are likely to work; they are not
part of the tests.

## Request codes

Every request code of RocketMQ's remoting protocol up to 5.3, and what happens to it here. A code
that is rejected on purpose gets REQUEST_CODE_NOT_SUPPORTED (3) and the reason; an unknown code gets
the same response without a reason. Unknown fields of requests are ignored. The class in the third
column lists the fields that are read; where it is empty, the request has no fields or has them in
its body.

In the table of served requests EFFECT says what a broker may change, and so who executes the
request in a group of brokers. Every member serves `none`, `session` (what it knows about connected
clients), `offsets` (consumer progress, as RocketMQ's slaves do) and `local` (its own settings in
memory, its own role, files of its own that have expired). Only the master of a group, or the leader
of a Raft group, executes `messages`, `tables`, `locks` and `members`; every other member changes
nothing and responds with SERVICE_NOT_AVAILABLE (14), a remark that names the master and the header
field `masterAddr`. Our admin client then asks that address; `mqadmin` prints code and remark and
asks masters unless it is told otherwise with `-b`. A replica that a consumer reads from creates no
group and no topic for it. In a Raft group the response to `tables` and `members` waits until the
change is committed; if leadership or the majority is lost before that, the response is SYSTEM_ERROR
(1) and says that the outcome is unknown.

These commands of `mqadmin` 4.9.8 and 5.3.3 were run by hand, with Java consumers online, against a
broker and a NameServer of ours, and did what they should: addWritePerm, brokerConsumeStats,
brokerStatus, cleanExpiredCQ, cleanUnusedTopic, cloneGroupOffset, clusterList, consumeMessage,
consumerConnection, consumerProgress, consumerStatus, deleteExpiredCommitLog, deleteSubGroup,
deleteTopic, getBrokerConfig, getConsumerConfig, getNamesrvConfig, haStatus (5.3), printMsg,
printMsgByQueue, producer, producerConnection, queryCq, queryMsgById (also with a consumer that
handles the message), queryMsgByKey, queryMsgByOffset, queryMsgByUniqueKey, resetOffsetByTime,
sendMessage, skipAccumulatedMessage, statsAll, topicClusterList, topicList, topicRoute, topicStatus,
updateBrokerConfig, updateSubGroup, updateTopic, updateTopicPerm, wipeWritePerm.
"""


class Code(NamedTuple):
    number: int
    name: str
    takes: str
    served_by: tuple[str, ...]
    rejected_by: tuple[str, ...]
    effect: str

    @property
    def is_answered(self) -> bool:
        return bool(self.served_by or self.rejected_by)


class Language(NamedTuple):
    """The words of the page in one language; codes and names come from `spec/` and the tables."""

    page: Path
    head: str
    titles: Mapping[str, str]
    """Titles of the tables, in their order."""
    columns: Mapping[str, str]
    notes: Mapping[int, str]
    refused: Mapping[int, str]
    """Why the broker refuses a code on purpose."""
    no_controller: str
    unused: str
    responses: Mapping[int, tuple[str, str]]
    """What a response code means, and what to do about it."""


def english() -> Language:
    return Language(
        page=ROOT / "docs" / "compat.md",
        head=HEAD,
        titles={
            "served": "Broker: served",
            "refused": "Broker: refused on purpose",
            "nameserver": "NameServer: served",
            "client": "Sent to clients",
            "controller": "Controller: refused",
            "unused": "Not in use",
            "responses": "Response codes",
        },
        columns={
            "code": "CODE",
            "name": "NAME",
            "fields": "FIELDS",
            "effect": "EFFECT",
            "remark": "REMARK",
            "reason": "REASON",
            "meaning": "MEANING",
            "remedy": "WHAT TO DO",
        },
        notes=NOTES,
        refused={code.value: reason for code, reason in REFUSED.items()},
        no_controller="there is no controller",
        unused="taken, and used by no client",
        responses={row["code"]: (row["sentence"], row["remedy"]) for row in _errors()},
    )


def chinese() -> Language:
    words: dict[str, Any] = tomllib.loads(CHINESE.read_text(encoding="utf-8"))
    notes = {int(number): note for number, note in words.pop("notes").items()}
    refused = {code: each["reason"] for each in words.pop("refused") for code in each["codes"]}
    responses = {
        int(number): (meaning, remedy)
        for number, (meaning, remedy) in words.pop("responses").items()
    }
    page = ROOT / "docs" / "compat.zh-CN.md"
    return Language(page=page, notes=notes, refused=refused, responses=responses, **words)


def untranslated(language: Language) -> list[str]:
    """Texts that a language lacks, and texts about codes that do not exist."""
    needed = english()
    return sorted(
        {f"notes: {number}" for number in needed.notes.keys() ^ language.notes.keys()}
        | {f"refused: {number}" for number in needed.refused.keys() ^ language.refused.keys()}
        | {f"responses: {number}" for number in needed.responses.keys() ^ language.responses.keys()}
        | {f"titles: {name}" for name in needed.titles.keys() ^ language.titles.keys()}
        | {f"columns: {name}" for name in needed.columns.keys() ^ language.columns.keys()}
    )


def _errors() -> list[dict[str, Any]]:
    text = (ROOT / "spec" / "errors.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["response"]
    return sorted(rows, key=lambda row: row["code"])


def codes() -> list[Code]:
    spec: dict[str, Any] = tomllib.loads((ROOT / "spec/requests.toml").read_text(encoding="utf-8"))
    found = [
        Code(
            code,
            name,
            row.get("takes", ""),
            tuple(row.get("served_by", ())),
            tuple(row.get("rejected_by", ())),
            row.get("effect", ""),
        )
        for name, row in spec["request"].items()
        for code in (row["code"],)
    ]
    return sorted(found)


def broker_served() -> set[int]:
    """Codes with a handler of the broker, those that only refuse left out."""
    return {*SmallBroker().requests.router.codes, *requests.FAST_PATH} - set(REFUSED)


def unaccounted(found: Iterable[Code]) -> list[str]:
    """Codes that broker and NameServer do not serve, or reject, as the table says."""
    served = broker_served()
    missing: list[str] = []
    for code in found:
        if ("broker" in code.served_by) != (code.number in served):
            missing.append(f"broker: {code.number} {code.name}")
        if ("broker" in code.rejected_by) != (code.number in set(REFUSED)):
            missing.append(f"broker, rejected: {code.number} {code.name}")
        if "nameserver" in code.served_by and code.number not in HANDLERS:
            missing.append(f"NameServer: {code.number} {code.name}")
    return missing


def table(language: Language, name: str, rows: Iterable[tuple[Code, str]], *, last: str) -> str:
    """A table of requests; the one of served requests says what they may change."""
    effects = ["effect"] if name == "served" else []
    lines = [_head(language, name, ["code", "name", "fields", *effects, last])]
    for code, text in rows:
        takes = f"`{code.takes}`" if code.takes else ""
        effect = [code.effect] if effects else []
        lines.append(_row([str(code.number), code.name, takes, *effect, text]))
    return "".join(lines)


def _head(language: Language, name: str, columns: list[str]) -> str:
    titles = _row(language.columns[column] for column in columns)
    return f"\n## {language.titles[name]}\n\n{titles}{_row(['---'] * len(columns))}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def responses(language: Language) -> str:
    """The table of response codes."""
    rows = [
        _row([str(row["code"]), row["name"], *language.responses[row["code"]]]) for row in _errors()
    ]
    return _head(language, "responses", ["code", "name", "meaning", "remedy"]) + "".join(rows)


def page(language: Language) -> str:
    found = codes()

    def of(server: str) -> list[Code]:
        return [code for code in found if server in code.served_by]

    def noted(some: Iterable[Code]) -> list[tuple[Code, str]]:
        return [(code, language.notes.get(code.number, "")) for code in some]

    rejected = [c for c in found if "broker" in c.rejected_by]
    refused = [(c, language.refused[c.number]) for c in rejected]
    controller = [(code, language.no_controller) for code in of("controller")]
    unused = [(code, language.unused) for code in found if not code.served_by + code.rejected_by]
    return language.head + "".join(
        (
            table(language, "served", noted(of("broker")), last="remark"),
            table(language, "refused", refused, last="reason"),
            table(language, "nameserver", noted(of("nameserver")), last="remark"),
            table(language, "client", noted(of("client")), last="remark"),
            table(language, "controller", controller, last="reason"),
            table(language, "unused", unused, last="reason"),
            responses(language),
        )
    )


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: gen_compat.py [--check]", file=sys.stderr)
        return 2
    missing = unaccounted(codes())
    if missing:
        print("neither served nor refused on purpose:", *missing, sep="\n  ", file=sys.stderr)
        return 1
    missing = untranslated(chinese())
    if missing:
        where = f"{CHINESE.relative_to(ROOT)} does not match the codes:"
        print(where, *missing, sep="\n  ", file=sys.stderr)
        return 1
    return max(write(language, check=bool(arguments)) for language in (english(), chinese()))


def write(language: Language, *, check: bool) -> int:
    text, place = page(language), language.page
    if place.exists() and place.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{place.relative_to(ROOT)} is stale: run tools/gen_compat.py", file=sys.stderr)
        return 1
    place.write_text(text, encoding="utf-8")
    print(f"wrote {place.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
