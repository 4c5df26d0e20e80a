"""Messages that a consumer could not process: they are retried later, or become dead letters."""

import random
from dataclasses import dataclass

from tianzhou.base.errors import UsageError
from tianzhou.base.limits import INT32_MAX
from tianzhou.broker import names
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.ingest.admission import RETRY_VERSION_MIN, Admission
from tianzhou.broker.role import Permission
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import Stored, records, require_ready
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record import names as keys
from tianzhou.store.protocols import QueueReader
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import ConsumerSendMsgBackRequest
from tianzhou.wire.names import PERM_WRITE
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig

FIRST_RETRY_LEVEL = 3
"""The first retry comes after 10 seconds; each later one is delayed one level more."""


@dataclass(slots=True, kw_only=True)
class SendBack:
    store: QueueReader
    topics: Topics
    groups: Groups
    permission: Permission
    admission: Admission
    writer: Writer
    stats: Stats

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, request: Request) -> Reply | None:
        asked = ConsumerSendMsgBackRequest.from_ext(request.header.ext)
        group = self._group(asked.group)
        self.permission.check_write()
        if group.retry_queue_nums <= 0:
            return Reply()  # the group has no retries: there is nothing to store
        topic = self._writable(names.retry_topic(asked.group), group.retry_queue_nums)
        most = group.retry_max_times
        if request.header.version >= RETRY_VERSION_MIN and asked.max_reconsume_times is not None:
            most = asked.max_reconsume_times
        with require_ready(self.store.record_at(asked.offset)) as found:
            original = next(records(found), None)
            if original is None or names.is_own(original.view.topic):
                # The broker's internal topics hold messages that no consumer may see yet.
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"look message by offset failed, {asked.offset}: no message begins there",
                )
            if original.view.reconsume_times >= most or asked.delay_level < 0:
                message = self._dead(original, asked.group)
            else:
                message = self._retried(original, topic, asked.delay_level)
        appended = self.writer.put([message.to_entry()])
        self.stats.sent_back(message.topic, asked.group, len(message.body))
        reply_when_durable(self.writer, request, appended.end, Reply())
        return None

    def _group(self, name: str) -> SubscriptionGroupConfig:
        try:
            names.checked_group(name)
        except UsageError as error:
            raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
        group = self.groups.obtain(name)
        if group is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {name} does not exist and cannot be created automatically; create it first",
            )
        return group

    def _writable(self, name: str, queues: int) -> TopicConfig:
        topic = self.topics.ensure(name, queues=queues)
        if not topic.perm & PERM_WRITE:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"topic {name} is not writable")
        return topic

    def _retried(self, original: Stored, topic: TopicConfig, level: int) -> Incoming:
        level = level or FIRST_RETRY_LEVEL + original.view.reconsume_times
        queue_id = random.randrange(max(1, topic.write_queue_nums))
        message = _with_retry(original, {keys.DELAY: b"%d" % level})
        return self.admission.redirect(message._replace(topic=topic.topic_name, queue_id=queue_id))

    def _dead(self, original: Stored, group: str) -> Incoming:
        """The dead letter of a message, with its origin and without a delay."""
        topic = self._writable(names.dead_topic(group), 1)
        message = _with_retry(original, {keys.DELAY: b""})
        message = message.with_properties(
            {
                keys.DLQ_ORIGIN_TOPIC: message.get(keys.RETRY_TOPIC) or b"",
                keys.DLQ_ORIGIN_MESSAGE_ID: message.get(keys.ORIGIN_MESSAGE_ID) or b"",
            }
        )
        return message._replace(topic=topic.topic_name, queue_id=0)


def _with_retry(original: Stored, added: dict[bytes, bytes]) -> Incoming:
    """The message with one more retry counted, and with the topic and id of its first attempt."""
    view = original.view
    first_topic = original.get(keys.RETRY_TOPIC) or view.topic.encode()
    first_id = original.get(keys.ORIGIN_MESSAGE_ID) or view.offset_id.encode()
    message = original.to_incoming().with_properties(
        {
            keys.RETRY_TOPIC: first_topic,
            keys.ORIGIN_MESSAGE_ID: first_id,
            keys.WAIT: b"false",
        }
        | added
    )
    times = min(view.reconsume_times + 1, INT32_MAX)
    return message._replace(reconsume_times=times, prepared_offset=0)
