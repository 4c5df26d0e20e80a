"""The registration with NameServers, through which clients find this broker."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.errors import TianzhouError
from tianzhou.base.nameserver_addresses import split_list
from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.mode import Mode, NameServerReport
from tianzhou.broker.role import Permission
from tianzhou.broker.topics.topics import READ_WRITE, Topics, with_perm
from tianzhou.net.nameserver_connections import NO_ANSWER, NameServerConnections
from tianzhou.store.errors import StoreError
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import Header
from tianzhou.wire.errors import BodyError
from tianzhou.wire.names import MASTER_ID
from tianzhou.wire.registration import (
    ADDRESS_BY_DIAL,
    EPOCH,
    EPOCH_SEEN,
    EPOCH_TOKEN,
    FREE_ID,
    MASTER_GREETS,
    NAME_TAKEN,
    read_missing,
)
from tianzhou.wire.signing import Credentials
from tianzhou.wire.tables import RegisterBrokerBody, TopicConfigTable

log: Final = logging.getLogger("tianzhou.broker")

LEAVE_S: Final = 1.0
"""How long a broker that stops waits for NameServers; it still has to save messages after that."""
_DIGITS_MAX: Final = 20
HEAR_S: Final = 2.0
"""How long a promotion waits for NameServers before it, because they know which epochs were used,
and again after it, so that they learn the new one; and how long a master waits that may have been
replaced."""
ANNOUNCE_S: Final = 0.5
"""How long the readers of a changed topic wait for NameServers that do not respond."""
RETRY_S: Final = 1.0
"""How often an unreachable NameServer is retried. Clients cannot find the broker meanwhile."""


CLAIMS: Final = 3
"""How often a starting broker retries to register a name that is taken."""


class Holder(NamedTuple):
    """The live broker that has the name and id of this one, as a NameServer reports."""

    address: str
    free_id: int
    """An id that this broker could use instead; 0: none."""


class NameTaken(TianzhouError):
    """Another live broker has the name and id of this one."""


class RegistrationContent:
    """What a registration says about this broker. Owner: its registration."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        permission: Permission,
        mode: Mode,
        *,
        address: str,
    ) -> None:
        self._config = config
        self._topics = topics
        self._permission = permission
        self._mode = mode
        self._address = address
        self._ha_address = address

    def set_ha_address(self, ha_address: str) -> None:
        """Announce where slaves connect, if that is not the broker's own address."""
        self._ha_address = ha_address

    def identity(self) -> dict[str, str]:
        return {
            "brokerName": self._config.name,
            "brokerAddr": self._address,
            "clusterName": self._config.cluster,
            "haServerAddr": self._ha_address,
            "brokerId": str(self._mode.role_state.broker_id),
        }

    def encode(self) -> tuple[dict[str, str], bytes]:
        """The fields and the body of a registration."""
        topics = allowed(self._topics.table(), self._permission.bits)
        announced = self._mode.announcement()
        epoch = announced.epoch
        if epoch:
            # A NameServer rejects a master whose epoch is lower than that of a later one.
            version = msgspec.structs.replace(topics.data_version, state_version=epoch)
            topics = msgspec.structs.replace(topics, data_version=version)
        ext = self.identity()
        if announced.is_claim:
            ext["brokerId"] = str(MASTER_ID)
        ext |= {"compressed": "false", "bodyCrc32": "0"}
        if not self._config.address:
            ext[ADDRESS_BY_DIAL] = "true"
        if epoch or announced.has_group:
            ext[EPOCH] = str(epoch)
        if announced.token:
            ext[EPOCH_TOKEN] = announced.token
        return ext, fastjson.encode(RegisterBrokerBody(topic_config_serialize_wrapper=topics))

    def taken_text(self, server: str, holder: str) -> str:
        return (
            f"NameServer {server} refuses this broker: the name {self._config.name!r} with id "
            f"{self._mode.role_state.broker_id} belongs to the broker at {holder}, which is alive; "
            "set another brokerName (or brokerId, for a replica of that broker), or stop the other "
            "one"
        )


class NameServerAnswers:
    """What each NameServer said to the last registration. Owner: the registration."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        """NameServers that did not accept the registration, with the reason."""
        self.taken: dict[str, Holder] = {}
        """NameServers that refuse this broker because another live one has its name, with that
        broker."""
        self._missing: dict[str, dict[str, int]] = {}
        """Missing brokers and the time each disappeared."""

    def record(self, server: str, answer: Header | str) -> bool:
        """Record a response, or the reason why it is missing; returns whether the NameServer
        accepted the registration."""
        if isinstance(answer, Header) and answer.code == 0:
            self.failed.pop(server, None)
            self.taken.pop(server, None)
            self._record_missing(server, answer.ext)
            return True
        self._missing.pop(server, None)
        if isinstance(answer, Header) and NAME_TAKEN in answer.ext:
            self.taken[server] = Holder(answer.ext[NAME_TAKEN], _number(answer.ext, FREE_ID))
        else:
            self.taken.pop(server, None)
        is_response = isinstance(answer, Header)
        reason = f"{answer.remark} (code {answer.code})" if is_response else answer
        if self.failed.get(server) != reason:
            log.warning("registration.failed", extra={"nameserver": server, "reason": reason})
        self.failed[server] = reason
        return False

    def _record_missing(self, server: str, ext: Mapping[str, str]) -> None:
        try:
            self._missing[server] = read_missing(ext)
        except BodyError as error:
            log.warning("answer.unreadable", extra={"nameserver": server, "reason": str(error)})

    def keep(self, servers: Collection[str]) -> None:
        """Forget what other NameServers than these said."""
        for said in (self.failed, self.taken, self._missing):
            for server in said.keys() - servers:
                del said[server]

    def missing_brokers(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for missing in self._missing.values():
            for name, since_ms in missing.items():
                found[name] = min(found.get(name, since_ms), since_ms)
        return found


class Registration:
    """Registers with every NameServer, periodically and at once when a topic changes.

    Owner: the broker loop.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        permission: Permission,
        mode: Mode,
        *,
        address: str,
        clock: Clock,
    ) -> None:
        self._config = config
        self._mode = mode
        self._content = RegistrationContent(config, topics, permission, mode, address=address)
        self._connections = NameServerConnections(
            split_list(config.nameservers), Credentials.read(config.cluster_credentials)
        )
        self._answers = NameServerAnswers()
        self._since = Since(clock)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._hearing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._begin_registration = topics.begin_registration
        topics.changed.append(self._wake.set)
        mode.role_state.changed.append(self._wake.set)

    @property
    def servers(self) -> tuple[str, ...]:
        """The NameServers that this broker registers with now."""
        return self._connections.servers

    def adopt(self, config: BrokerConfig) -> None:
        """Follow a changed list: register with new NameServers now, and then leave removed ones."""
        if self._connections.replace(split_list(config.nameservers)):
            self._wake.set()

    def missing(self) -> dict[str, str]:
        """NameServers that do not list this broker, with the reason as far as they gave one."""
        failed, connections = self._answers.failed, self._connections
        return {
            server: failed.get(server, NO_ANSWER)
            for server in self.servers
            if server in failed or not connections.is_open(server)
        }

    def missing_brokers(self) -> dict[str, int]:
        """Missing brokers of the cluster and the time each disappeared, as the NameServers
        report."""
        return self._answers.missing_brokers()

    def wake(self) -> None:
        """Register soon: the response names the master."""
        self._wake.set()

    async def claim_name(self, ha_address: str | None = None) -> None:
        """Register for the first time. Raises NameTaken if any NameServer knows another broker
        under our name: clients that ask there would find the other broker's messages, so
        registering at the other NameServers would not help.

        After a crash and a restart on another port, a NameServer may see this broker before it
        notices that its predecessor is gone, so a refusal counts only if it is repeated.

        `ha_address` is where slaves connect; by default at the broker's own address."""
        if ha_address is not None:
            self._content.set_ha_address(ha_address)
        await self._connections.resolve()
        await self.register()
        for _ in range(CLAIMS):
            if not self._answers.taken:
                return
            await asyncio.sleep(RETRY_S)
            await self.register()
        await self._use_free_id()
        for server, holder in self._answers.taken.items():
            raise NameTaken(self._content.taken_text(server, holder.address))

    async def _use_free_id(self) -> None:
        """Register with another id if that of this slave was given to a master that stepped down
        while this slave was away."""
        free_id = max((holder.free_id for holder in self._answers.taken.values()), default=0)
        if free_id and self._mode.use_id(free_id):
            await self.register()

    def alarms(self) -> Iterator[Alarm]:
        """Alarms about how clients find this broker."""
        refusals = self._answers.taken
        taken = next(iter(refusals.items()), None)
        since_ms = self._since.began_ms("name_taken", holds=taken is not None)
        if taken is not None:
            said, _, remedy = self._content.taken_text(taken[0], taken[1].address).rpartition("; ")
            yield Alarm(kind="name_taken", text=said, remedy=remedy, since_ms=since_ms)
        unknown = {at: why for at, why in self.missing().items() if at not in refusals}
        since_ms = self._since.began_ms("unregistered", holds=bool(unknown))
        if unknown:
            reasons = "; ".join(f"{server}: {reason}" for server, reason in unknown.items())
            yield Alarm(
                kind="unregistered",
                text=f"{len(unknown)} of {len(self.servers)} NameServers do not list it, so "
                f"that clients of these cannot find it: {reasons}",
                remedy="check that they run: tianzhou doctor",
                since_ms=since_ms,
                is_problem=len(unknown) == len(self.servers),
            )
        for name, began_ms in sorted(self.missing_brokers().items()):
            yield Alarm(
                kind="broker_missing",
                text=f"broker {name} is missing: it disappeared without unregistering",
                remedy=f"start it; if it was retired: tianzhou broker forget {name}",
                since_ms=began_ms,
            )

    async def start(self) -> None:
        """Register once, then continue in the background. Raises NameTaken."""
        await self.claim_name()
        self._task = asyncio.get_running_loop().create_task(self._loop())

    async def _loop(self) -> None:
        while True:
            try:
                await self._pause()
                # Clear the event before the topics are encoded: a topic created later must set it
                # again.
                self._wake.clear()
                await self._register_and_announce()
                await self._use_free_id()
                await self._follow_names()
                await self._leave_removed()
            except MemoryError:
                # The next round retries. If this task ended, the NameServers would drop the broker.
                await asyncio.sleep(RETRY_S)
            except StoreError as error:
                log.warning("report.not_saved", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)
                self._wake.set()  # a replaced master must not wait for the next regular round

    async def _register_and_announce(self) -> None:
        """Register, and report changed topics once the NameServers know them. One that hangs does
        not delay the report to clients that use another one."""
        registered = self._begin_registration()
        late = asyncio.get_running_loop().call_later(ANNOUNCE_S, registered)
        try:
            await self.register()
        finally:
            late.cancel()
            registered()

    async def _follow_names(self) -> None:
        """Register with NameServers that a host name has only now."""
        before = self.servers
        await self._connections.resolve()
        if self.servers != before:
            await self.register()

    async def _leave_removed(self) -> None:
        """Unregister from NameServers that are not in the list any more. Registering with new ones
        comes first, so that clients find this broker at all times."""
        removed = self._connections.removed()
        await asyncio.gather(*map(self._leave, removed))
        self._answers.keep(self.servers)
        if removed:
            # A removed address and one that stays may lead to the same NameServer.
            await self.register()

    async def _leave(self, server: str) -> None:
        """A broker that unregisters is not missing; one whose connection closes is."""
        if self._connections.is_open(server):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._unregister(server)
        self._connections.drop(server)
        log.info("nameserver.left", extra={"nameserver": server})

    async def _unregister(self, server: str) -> None:
        identity = self._content.identity()
        await self._connections.call(server, RequestCode.UNREGISTER_BROKER, identity, b"")

    async def _pause(self) -> None:
        """Wait until the interval has passed, a topic changed, or a NameServer lost this broker."""
        rounds = max(1, round(self._config.register_interval_ms / 1000 / RETRY_S))
        for _ in range(rounds):
            try:
                async with asyncio.timeout(RETRY_S):
                    await self._wake.wait()
            except TimeoutError:
                if not self._is_known_everywhere():
                    return
            else:
                return

    def _is_known_everywhere(self) -> bool:
        """A NameServer removes a broker when their connection closes."""
        return not self.missing()

    def register_then(self, then: Callable[[], None]) -> None:
        """Register, and call `then` when all NameServers have responded or timed out."""
        self._run(self._register_and(then))

    async def _register_and(self, then: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(HEAR_S):
                await self.register()
        except TimeoutError:
            pass
        except StoreError as error:
            log.warning("report.not_saved", extra={"reason": str(error)})
        then()

    def hear(self, then: Callable[[bool], None]) -> None:
        """The same, and tell `then` whether any NameServer has accepted the registration, or none
        is configured."""
        self._run(self._hear(then))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        if self._is_closed:  # a broker that has unregistered must not register again
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._hearing.add(task)
        task.add_done_callback(self._hearing.discard)

    async def _hear(self, then: Callable[[bool], None]) -> None:
        asked = [asyncio.ensure_future(self._register(server)) for server in self.servers]
        done, late = await asyncio.wait(asked, timeout=HEAR_S) if asked else ((), ())
        for one in late:
            one.cancel()
        for error in filter(None, (one.exception() for one in done)):
            # For example, the later master that a NameServer reported could not be saved.
            log.warning("report.not_saved", extra={"reason": str(error)})
        then(not asked or any(one.exception() is None and one.result() for one in done))

    async def register(self) -> None:
        """Register with every NameServer; returns when all have responded or failed. Raises
        StoreError if what a NameServer reported could not be saved."""
        await asyncio.gather(*(self._register(server) for server in self.servers))

    async def _register(self, server: str) -> bool:
        """Returns whether the NameServer accepted the registration."""
        ext, body = self._content.encode()
        answer = await self._connections.call(server, RequestCode.REGISTER_BROKER, ext, body)
        is_accepted = self._answers.record(server, answer)
        if is_accepted and isinstance(answer, Header):
            self._mode.on_nameserver_report(_report(answer.ext))
        return is_accepted

    def _stop(self) -> list[asyncio.Task[None]]:
        self._is_closed = True
        tasks = [*self._hearing] if self._task is None else [self._task, *self._hearing]
        for task in tasks:
            task.cancel()
        return tasks

    def abort(self) -> None:
        """Stop without unregistering, as the end of a process does."""
        self._stop()
        self._connections.abort()

    async def close(self) -> None:
        """Unregister, so that clients use other brokers at once."""
        await asyncio.gather(*self._stop(), return_exceptions=True)
        connections = self._connections
        known = {*self.servers, *connections.removed()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(*map(self._unregister, filter(connections.is_open, known)))
        connections.close()


def allowed(table: TopicConfigTable, bits: int) -> TopicConfigTable:
    """The topics as clients may use them: a broker that is drained has no writable ones."""
    if bits & READ_WRITE == READ_WRITE:
        return table
    topics = {name: with_perm(t, t.perm & bits) for name, t in table.topic_config_table.items()}
    return msgspec.structs.replace(table, topic_config_table=topics)


def _number(ext: Mapping[str, str], name: str) -> int:
    """A count from a NameServer's response; 0 if it is missing or invalid."""
    text = ext.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX else 0


def _report(ext: Mapping[str, str]) -> NameServerReport:
    return NameServerReport(
        epoch_seen=_number(ext, EPOCH_SEEN),
        epoch=_number(ext, EPOCH),
        free_id=_number(ext, FREE_ID) or 1,
        master_address=ext.get("masterAddr", ""),
        ha_address=ext.get("haServerAddr", ""),
        greets=ext.get(MASTER_GREETS) == "true",
    )
