"""Why a topic cannot be read. Without this `tianzhou consume` would wait without a word.

The brokers decide: a pull of one queue of each broker shows whether they serve it. Only when they
do not, further requests find out the reason and the command that removes it.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import click

from tianzhou.admin.commands.failures import ExitCode, Failure, failure_of
from tianzhou.admin.commands.session import Session
from tianzhou.base.errors import TianzhouError
from tianzhou.wire.names import PERM_READ

if TYPE_CHECKING:
    from tianzhou.client.sync.pull_consumer import PullConsumer
    from tianzhou.wire.queues import MessageQueue
    from tianzhou.wire.tables import TopicConfig

CREATED_S: Final = 1.0
"""How long to wait for a topic that no broker has: a producer may be creating it."""
REGISTERED_S: Final = 5.0
"""How long to wait for the registration of a topic that a broker has created."""
_PAUSE_S: Final = 0.05


def queues_of(session: Session, consumer: "PullConsumer", topic: str) -> "list[MessageQueue]":
    """The queues of the topic that can be read. Raises Failure if there are none, with the
    reason."""
    from tianzhou.client.errors import TopicNotFound

    deadline_s = monotonic() + CREATED_S
    has_holder = False
    while True:
        try:
            found = list(consumer.queues(topic))
        except TopicNotFound:
            if not has_holder and _holders(session, topic):
                deadline_s, has_holder = monotonic() + REGISTERED_S, True
            if monotonic() > deadline_s:
                raise _unknown(session, topic) from None
            sleep(_PAUSE_S)
        else:
            if not found:
                raise forbidden(session, topic)
            return found


def check_group(session: Session, topic: str, group: str) -> None:
    """Raise Failure unless the group can read the topic. Warn about brokers that do not serve it
    while others do."""
    from tianzhou.client.errors import NoPermission
    from tianzhou.client.sync.pull_consumer import PullConsumer

    with PullConsumer(group, nameserver=session.nameserver) as consumer:
        found = {queue.broker_name: queue for queue in queues_of(session, consumer, topic)}
        refused: dict[str, TianzhouError] = {}
        for name, queue in found.items():
            try:
                consumer.pull(queue, consumer.end(queue), count_max=1)
            except TianzhouError as error:
                is_away = failure_of(error).exit_code == ExitCode.UNREACHABLE
                if not is_away and not isinstance(error, NoPermission):
                    raise
                refused[name] = error
    if len(refused) == len(found):
        raise _refusal(session, topic, group, refused)
    for name, error in refused.items():
        said = f"{failure_of(error).message}; the queues of {name} are not read meanwhile"
        click.echo(f"tianzhou: {said}", err=True)


@contextmanager
def explained(session: Session, topic: str) -> Generator[None]:
    """Explain a pull that a broker does not permit."""
    from tianzhou.client.errors import NoPermission

    try:
        yield
    except NoPermission as error:
        raise forbidden(session, topic, said=str(error)) from error


def _refusal(
    session: Session, topic: str, group: str, refused: Mapping[str, TianzhouError]
) -> Failure:
    from tianzhou.client.errors import NoPermission

    for error in refused.values():
        if isinstance(error, NoPermission):
            return forbidden(session, topic, group, said=str(error))
    reasons = "; ".join(f"{name}: {error}" for name, error in refused.items())
    return Failure(
        f"topic {topic} cannot be read: none of its brokers responds: {reasons}; `tianzhou doctor "
        f"-t {topic}` explains why",
        ExitCode.UNREACHABLE,
    )


# Topics without a route


def _holders(session: Session, topic: str) -> list[str]:
    """The brokers that have a topic which the NameServer does not know: they register it now."""
    from tianzhou.admin.doctor.routes import has_topic

    places = session.admin.brokers.all()
    return [place.name for place in places if has_topic(place.nearest, topic)]


def _unknown(session: Session, topic: str) -> TianzhouError | Failure:
    from tianzhou.client.errors import TopicNotFound

    missing = session.admin.brokers.missing()
    gone = [broker for broker in missing if topic in {row.name for row in broker.topics}]
    if gone:
        names = ", ".join(f"{broker.name} at {broker.address}" for broker in gone)
        said = f"all brokers that had it are away ({names}); start them: tianzhou broker -n"
        return Failure(
            f"topic {topic} cannot be read: {said} {session.nameserver}", ExitCode.UNREACHABLE
        )
    if holders := _holders(session, topic):
        said = f"{', '.join(holders)} has it, but has not registered it with this NameServer"
        return Failure(
            f"topic {topic} cannot be read: {said}; `tianzhou doctor -t {topic}` explains why",
            ExitCode.UNREACHABLE,
        )
    if not session.admin.brokers.all():
        said = "no broker is registered with the NameServer; start one: tianzhou broker -n"
        return Failure(
            f"topic {topic} cannot be read: {said} {session.nameserver}", ExitCode.UNREACHABLE
        )
    return TopicNotFound(topic)


# Permissions


def forbidden(session: Session, topic: str, group: str = "", *, said: str = "") -> Failure:
    """The failure for a topic that no broker permits to read; `said` is what the last one said."""
    configs = session.admin.topics.show(topic).configs
    reason = (
        _by_broker(session, configs)
        or _by_topic(topic, configs)
        or _by_group(session, group, configs)
        or f"{said}; `tianzhou doctor -t {topic}` explains why"
    )
    return Failure(f"topic {topic} cannot be read: {reason}", ExitCode.REFUSED)


def _by_broker(session: Session, brokers: Iterable[str]) -> str:
    for name in brokers:
        bits = session.admin.brokers.config(name).get("brokerPermission", "6")
        if not int(bits) & PERM_READ:
            return (
                f"broker {name} delivers no messages (brokerPermission={bits}); allow it: tianzhou "
                f"broker config {name} --set brokerPermission=6"
            )
    return ""


def _by_topic(topic: str, configs: "Mapping[str, TopicConfig]") -> str:
    where = ", ".join(configs)
    if not any(config.perm & PERM_READ for config in configs.values()):
        return (
            f"no client has permission to read it on {where}; allow it: tianzhou topic update "
            f"{topic} --permission rw"
        )
    if not any(config.read_queue_nums for config in configs.values()):
        return (
            f"it has no queues to read on {where}; add some: tianzhou topic update {topic} "
            "--read-queues 8"
        )
    return ""


def _by_group(session: Session, group: str, brokers: Iterable[str]) -> str:
    if not group:
        return ""
    configs = session.admin.groups.show(group).configs
    off = [name for name in brokers if name in configs and not configs[name].consume_enable]
    if not off:
        return ""
    return (
        f"group {group} is disabled on {', '.join(off)}; enable it: tianzhou group update {group} "
        "--consume"
    )
