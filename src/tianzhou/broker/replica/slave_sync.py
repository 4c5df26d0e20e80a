"""The metadata that a slave copies from its master besides the log: topics, groups, offsets,
progress.

The slave periodically requests everything, with RocketMQ's requests. Progress of delays, timers and
transactions refers to messages in the master's log: the slave adopts it once its own log has
reached the position at which the master reported it; otherwise a promotion would skip work that
only the master had done. For the same reason the slave removes the queues of a topic that the
master deleted only once its log has reached that position: messages that arrived later would
recreate the topic. Offsets that consumers committed here while the master was down are sent to the
master, unless its own are newer.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tianzhou.base.errors import RemoteProtocolError, TianzhouError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker import names
from tianzhou.broker.groups.accepted_offsets import FORWARD_ONLY, RESET_SEEN, AcceptedOffsets
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.replica.expiry_floor import Progress as KeptProgress
from tianzhou.broker.replica.expiry_floor import saved_progress
from tianzhou.broker.role import RoleState
from tianzhou.broker.scheduled.timer_progress import TimerProgress, progress_table
from tianzhou.broker.topics.topics import Topics
from tianzhou.net.dial import dial
from tianzhou.net.server_connection import ServerConnection
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import UpdateConsumerOffsetRequest
from tianzhou.wire.codec import Header
from tianzhou.wire.replication_bodies import LOG_END, TIMERS
from tianzhou.wire.tables import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_group_table,
    decode_topic_table,
)

log: Final = logging.getLogger("tianzhou.replication")

NEVER: Final = 1 << 62
"""An offset beyond the end of any log."""
ANSWER_S: Final = 5.0
SOON_S: Final = 0.5
"""The shortest pause between two rounds, however many topics are new."""
LAST_S: Final = 2.0
"""How long a promotion may wait for the last round with a master that is still there."""


class MasterSilent(TianzhouError):
    """The master did not respond."""


class MasterRejects(TianzhouError):
    """The master responded with an error."""


@dataclass(slots=True)
class Progress:
    """Progress to adopt when the log of this slave reaches `log_end`."""

    log_end: int
    offsets: ConsumerOffsetTable
    delays: DelayOffsetTable
    timers: TimerProgress | None


@dataclass(slots=True)
class Tables:
    """The tables that follow the master's."""

    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets


class SlaveSync:
    """Owner: the broker loop. Lives while this broker follows a master."""

    def __init__(self, tables: Tables, *, every_s: float) -> None:
        self._tables = tables
        self._every_s = every_s
        self._connection: ServerConnection | None = None
        self._address = ""
        self._waiting: Progress | None = None
        self._deleted: dict[str, int] = {}
        """Topics that the master deleted, with the end of its log at that time."""
        self._task: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None
        self._is_wanted = asyncio.Event()
        self._tells_timers = True
        """True until a master turns out not to report it; timed messages then no longer hold back
        retention, or the log would never expire."""
        self.rounds = 0
        """Complete rounds: everything was requested and received."""

    def start(self, role_state: RoleState) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(role_state))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    def soon(self) -> None:
        """Start the next round soon: the master knows more about a message that arrived, and it may
        not live until the next regular round."""
        self._is_wanted.set()

    async def _run(self, role_state: RoleState) -> None:
        last = ""
        while True:
            master = role_state.master_address
            if master:
                try:
                    await self._round(master)
                    self.rounds += 1
                    last = ""
                except (TianzhouError, OSError, TimeoutError, MemoryError) as error:
                    if str(error) != last:
                        log.warning(
                            "metadata.not_taken", extra={"master": master, "reason": str(error)}
                        )
                    last = str(error)
            await asyncio.sleep(min(SOON_S, self._every_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._every_s - SOON_S, 0)):
                    await self._is_wanted.wait()
            self._is_wanted.clear()

    def finish(self, address: str, then: Callable[[], None]) -> None:
        """Copy everything once more from a master that has stepped down, then call `then`: messages
        that it delivered, and offsets that consumers committed there, since the last round must
        not be delivered again."""
        self._last = asyncio.get_running_loop().create_task(self._finish(address, then))

    async def _finish(self, address: str, then: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(LAST_S):
                await self._round(address)
        except (TianzhouError, OSError, TimeoutError) as error:
            log.warning("metadata.not_taken", extra={"master": address, "reason": str(error)})
        then()

    def tick(self) -> None:
        """Adopt progress, and delete topics, that waited for the log."""
        self._delete_topics(self._tables.store.log.end)
        waiting = self._waiting
        if waiting is not None and self._tables.store.log.end >= waiting.log_end:
            self._waiting = None
            self._take(waiting)

    async def _round(self, address: str) -> None:
        tables = self._tables
        ext, body = await self._request(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        self._take_topics(body, _log_end_and_timers(ext)[0])
        _, body = await self._request(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        tables.groups.follow(decode_group_table(body))
        _, body = await self._request(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        offsets = decode_consumer_offsets(body)
        accepted = tables.offsets.accepted
        assert accepted is not None, "only a slave synchronises"
        tables.offsets.remove_rows(accepted.record_master(offsets))
        # Last, because the end of the log in this response covers everything requested before.
        ext, body = await self._request(address, RequestCode.GET_ALL_DELAY_OFFSET)
        log_end, timers = _log_end_and_timers(ext)
        self._tells_timers = timers is not None
        self._waiting = Progress(log_end, offsets, decode_delay_offsets(body), timers)
        self.tick()
        await self._give_back(address, accepted)

    def progress(self) -> KeptProgress:
        """The progress from which timers and delays would resume after a promotion; the log from
        there on must be kept."""
        saved = saved_progress(self._tables.store, self._tables.offsets)
        return saved if self._tells_timers else replace(saved, timers=None)

    def _take_topics(self, body: bytes, log_end: int) -> None:
        """Delete topics at `log_end`. It is 0 for RocketMQ's masters, which do not report it; the
        topics are then deleted at once."""
        deleted = self._tables.topics.follow(decode_topic_table(body))
        self._deleted |= dict.fromkeys(deleted, log_end)
        self._delete_topics(self._tables.store.log.end)

    def delete_rest(self) -> None:
        """Delete pending topics before a promotion: no more of their messages can arrive."""
        self._delete_topics(NEVER)

    def _delete_topics(self, reached: int) -> None:
        for topic, log_end in tuple(self._deleted.items()):
            if log_end <= reached:
                del self._deleted[topic]
                end = min(log_end or NEVER, self._tables.store.log.end)
                # Messages after that offset belong to a topic of the same name that was created
                # since.
                self._tables.store.delete_topic(topic, before=PhysicalOffset(end))

    def _take(self, progress: Progress) -> None:
        store = self._tables.store
        self._tables.offsets.follow(progress.offsets)
        if store.tables.delay_offsets.load() != progress.delays:
            store.tables.delay_offsets.save(progress.delays)
        timers = progress_table(store)
        if progress.timers is not None and timers.load() != progress.timers:
            timers.save(progress.timers)

    async def hand_over(self, address: str) -> None:
        """In a Raft group, where everything else is in the log: send the leader offsets that only
        this member has."""
        accepted = self._tables.offsets.accepted
        if accepted is not None:
            try:
                await self._give_back(address, accepted)
            except (TianzhouError, OSError, TimeoutError, MemoryError) as error:
                # Retried a second later: by then another member may lead.
                log.warning("offsets.not_handed_over", extra={"reason": str(error)})

    async def _give_back(self, address: str, accepted: AcceptedOffsets) -> None:
        """Send the master offsets that only this broker has."""
        for key, queue_id, offset in accepted.ahead():
            topic, _, group = key.partition("@")
            fields = UpdateConsumerOffsetRequest(
                consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
            )
            seen = accepted.resets.latest(key, queue_id)
            ext = fields.to_ext() | {FORWARD_ONLY: "true", RESET_SEEN: str(seen)}
            if group == names.TRANSACTION_GROUP:
                continue
            try:
                await self._request(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
            except MasterRejects as error:
                # The usual cause is a deleted topic; the other offsets must not wait for it.
                log.warning("offset.not_taken", extra={"row": key, "reason": str(error)})
                accepted.drop(key, queue_id)

    async def _request(
        self, address: str, code: RequestCode, ext: dict[str, str] | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        connection = self._connection
        if connection is None or not connection.is_open or address != self._address:
            host, _, port = address.rpartition(":")
            connection = self._connection = await dial(host.strip("[]"), int(port))
            self._address = address
            if self._tables.offsets.accepted is not None:
                self._tables.offsets.accepted.reconnected()
        answered: asyncio.Future[tuple[Header | None, bytes]] = (
            asyncio.get_running_loop().create_future()
        )

        def on_answer(header: Header | None, body: bytes) -> None:
            with contextlib.suppress(asyncio.InvalidStateError):
                answered.set_result((header, body))

        connection.ask(code, ext or {}, b"", on_answer, timeout_s=ANSWER_S)
        async with asyncio.timeout(ANSWER_S):
            header, body = await answered
        if header is None:
            raise MasterSilent(f"{code.name} at {address}: no response")
        if header.code != 0:
            raise MasterRejects(f"{code.name} at {address}: {header.remark}")
        return header.ext, body


def _log_end_and_timers(ext: Mapping[str, str]) -> tuple[int, TimerProgress | None]:
    """The fields that Tianzhou masters add to the progress of delays. Raises
    RemoteProtocolError."""
    text = ext.get(TIMERS)
    try:
        timers = None if text is None else msgspec.json.decode(text, type=TimerProgress)
        return int(ext.get(LOG_END, "0")), timers
    except (ValueError, RecursionError) as error:  # including msgspec's errors
        raise RemoteProtocolError(f"cannot decode the master's progress: {error}") from error
