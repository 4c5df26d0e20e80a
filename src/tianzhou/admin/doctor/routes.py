"""Diagnose a topic that cannot be found, written or read, or that some brokers lack."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tianzhou.admin.doctor.findings import Finding, fine, problem, warning
from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.findings import LISTED_MAX
from tianzhou.client.core.replays import REPLAY_TOPIC
from tianzhou.client.errors import TopicNotFound
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.names import DEAD_LETTER_PREFIX, PERM_READ, PERM_WRITE, RETRY_PREFIX
from tianzhou.wire.tables import TopicConfig

if TYPE_CHECKING:
    from tianzhou.client.sync.admin import Admin


def topic_findings(
    admin: "Admin", topic: str, masters: Mapping[str, str], configs: Mapping[str, Mapping[str, str]]
) -> Iterable[Finding]:
    """`masters` are addresses, `configs` settings, both by broker name."""
    try:
        state = admin.topics.show(topic)
    except TopicNotFound:
        yield from _no_route(admin, topic, masters, configs)
        return
    about = f"topic {topic}"
    found = [finding for config in state.configs.items() for finding in _settings(topic, *config)]
    yield from found
    if not found:
        count = len(state.queues)
        yield fine(about, f"{count} queues on {', '.join(state.configs)}, {state.count} messages")


def placement_findings(
    admin: "Admin", clusters: Mapping[str, str], *, only: str | None
) -> Iterable[Finding]:
    """Brokers without a queue of a topic that other brokers of their cluster have: a broker that
    was added gets no messages before its topics are spread. `clusters` has the cluster of each
    broker, `only` the topic that the user asks about. RocketMQ's brokers have no such view."""
    _, views = admin.views.topics()
    held = {
        broker: {
            row.name
            for row in view.topics
            if not row.is_system
            and row.name != REPLAY_TOPIC
            and not row.name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        }
        for broker, view in views.found.items()
        if broker in clusters
    }
    for broker, mine in sorted(held.items()):
        others = (held[other] for other in held if clusters[other] == clusters[broker])
        lacking = sorted(set[str]().union(*others) - mine)
        if only is not None:
            lacking = [topic for topic in lacking if topic == only]
        if lacking:
            said = f"it has no queue of {_listed(lacking)}, so it gets none of their messages"
            name = lacking[0] if len(lacking) == 1 else "--all"
            yield warning(f"broker {broker}", said, f"tianzhou topic spread {name}")


def _listed(topics: list[str]) -> str:
    more = f" and {len(topics) - LISTED_MAX} more" if len(topics) > LISTED_MAX else ""
    word = "topic" if len(topics) == 1 else f"{len(topics)} topics:"
    return f"{word} {', '.join(topics[:LISTED_MAX])}{more}"


def _settings(topic: str, broker: str, config: TopicConfig) -> Iterable[Finding]:
    about = f"topic {topic}"
    fix = f"tianzhou topic update {topic} --permission rw"
    if not config.perm & PERM_WRITE:
        yield problem(about, f"no client has permission to write it on {broker}", fix)
    if not config.perm & PERM_READ:
        yield problem(about, f"no client has permission to read it on {broker}", fix)
    read, write = config.read_queue_nums, config.write_queue_nums
    if read < write:
        said = f"on {broker} producers write {write} queues and consumers read only {read} of them"
        yield problem(about, said, f"tianzhou topic update {topic} --read-queues {write}")


def _no_route(
    admin: "Admin", topic: str, masters: Mapping[str, str], configs: Mapping[str, Mapping[str, str]]
) -> Iterable[Finding]:
    about = f"topic {topic}"
    held = [broker for broker, address in masters.items() if has_topic(address, topic)]
    if held:
        places = ", ".join(
            f"{broker} registers with {configs[broker].get('namesrvAddr') or 'no NameServer'}"
            for broker in held
            if broker in configs
        )
        said = f"{', '.join(held)} has it, but has not registered it with this NameServer: {places}"
        yield problem(
            about, said, "wait 30 s, or use that NameServer: tianzhou doctor -n HOST:PORT"
        )
        return
    alike = get_close_matches(topic, admin.topics.all(internal=True), n=3, cutoff=0.75)
    if alike:
        said = f"no broker has it; did you mean {', '.join(alike)}?"
        yield problem(about, said, f"tianzhou topic show {alike[0]}")
        return
    makes = any(config.get("autoCreateTopicEnable") != "false" for config in configs.values())
    said = (
        "no broker has it; the first message creates it; until then consumers find nothing"
        if makes
        else "no broker has it, and none creates topics automatically (autoCreateTopicEnable=false)"
    )
    yield problem(about, said, f"tianzhou topic create {topic}")


def has_topic(address: str, topic: str) -> bool:
    """Whether the broker at this address has the topic, registered or not."""
    try:
        with BlockingPeer(address) as peer:
            answer, _ = peer.call(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    except TianzhouError:
        return False  # another finding reports that it does not respond
    return answer.code == ResponseCode.SUCCESS
