"""Admission: may this message be stored, and where? Every check of a send, in RocketMQ's order. And
`split`, which turns a batch into its messages, each with the properties of the batch."""

import random
from collections.abc import Callable
from typing import Final, cast

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.base.limits import PROPERTIES_BYTES_MAX
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.role import Permission
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing import incoming
from tianzhou.broker.writing.incoming import Incoming, delay_level, delivery_time, is_true
from tianzhou.broker.writing.light_queues import LightQueues
from tianzhou.net.rpc import RequestRejected
from tianzhou.record import flags, properties
from tianzhou.record import names as keys
from tianzhou.record.batch import BatchError, decode_batch
from tianzhou.record.chunk import CRC_PLACEHOLDER, Entry
from tianzhou.record.layout import CRC_PROPERTY
from tianzhou.record.light_queues import ANY_PROPERTY, is_light
from tianzhou.store.config import StoreConfig
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.names import PERM_WRITE, RETRY_PREFIX
from tianzhou.wire.tables import TopicConfig

SendHeader = SendMessageRequest | SendMessageV2Request

INDEX_KEYS_MAX: Final = 64
"""Keys of one message; each is an entry of the index."""
MANY_KEYS_BYTES: Final = 2 * INDEX_KEYS_MAX
"""Shorter properties have no room for too many keys."""
RETRY_VERSION_MIN: Final = 121
"""Clients before 3.4.9 do not send how often a message may be retried."""
# Creates a named tuple without calling its constructor, which takes twice as long.
new_entry: Final = cast(
    "Callable[[type[Entry], tuple[object, ...]], Entry]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType] - the stub leaves its items open
)


def check_keys(text: Bytes) -> None:
    """Raises RequestRejected for properties with more keys than a message may have."""
    if len(text) <= MANY_KEYS_BYTES:
        return
    found = properties.find(text, keys.KEYS)
    if found is not None and found.count(b" ") >= INDEX_KEYS_MAX:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a message can have {INDEX_KEYS_MAX} keys, not {found.count(b' ') + 1}",
        )


def check_separators(text: Bytes) -> None:
    """Raises RequestRejected for properties with a separator inside a name or value: readers do not
    agree on the properties of such a message."""
    text = bytes(text)
    names_ended, values_ended = text.count(b"\x01"), text.count(b"\x02")
    if names_ended != values_ended + (text != b"" and text[-1] != 2):
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"properties have {names_ended} names and {values_ended} ends of values: one of them "
            r"has a separator (\x01 or \x02) in it; encode such values, in base64 for example",
        )


def check_batch_flags(sys_flag: int) -> None:
    """Raises RequestRejected for a batch in a transaction, as RocketMQ does: its messages would be
    stored where no consumer and no decision could ever find them."""
    if sys_flag & flags.TRANSACTION_MASK:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag {sys_flag:#x} makes the batch transactional; send transactional messages "
            "one by one",
        )


class Admission:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        permission: Permission,
        *,
        clock: Clock,
        body_bytes_max: int,
        delay_levels: int,
        light_queues: LightQueues,
        timers_are_full: Callable[[], bool],
        halves_are_full: Callable[[], bool],
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._permission = permission
        self._clock = clock
        self.body_bytes_max = body_bytes_max
        self._delay_levels = delay_levels
        self.light_queues = light_queues
        self._timers_are_full = timers_are_full
        self._halves_are_full = halves_are_full

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._config = config

    def adopt_store(self, config: StoreConfig) -> None:
        self.body_bytes_max = config.message_bytes_max

    def topic_for(self, header: SendHeader) -> TopicConfig:
        """The topic of a send, created now if necessary. Raises RequestRejected."""
        self._permission.check_write()
        name = header.topic
        self.check_name(name)
        topic = self._topics.for_send(name, header.default_topic, header.default_topic_queue_nums)
        if topic is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {name} does not exist and cannot be created automatically; create it "
                f"first, for example: tianzhou topic create {name}",
            )
        if not topic.perm & PERM_WRITE:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"topic {name} is not writable")
        queues = max(topic.write_queue_nums, topic.read_queue_nums)
        if header.queue_id >= queues:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"topic {name} has {queues} queues; queue {header.queue_id} is not one of them",
            )
        return topic

    def flag_of(self, header: SendHeader) -> int:
        """The flag to store a send with. Raises RequestRejected for a record that claims to be a
        batch: consumers would split its body, and only a broker with batch queues may write one."""
        if header.sys_flag & flags.INNER_BATCH:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"sysFlag {header.sys_flag:#x} claims that the body is a batch in one record; "
                "topics of this broker do not have that type; send a batch request",
            )
        return incoming.client_flag(header.sys_flag)

    def check_name(self, name: str) -> None:
        try:
            names.checked_topic(name)
        except UsageError as error:
            raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if is_light(name):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"{name} is a light queue; send to a topic, and name the queue in the property "
                "INNER_MULTI_DISPATCH",
            )
        if names.is_own(name):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"topic {name} is internal to the broker; clients cannot send to it",
            )

    def queue_for(self, topic: TopicConfig, queue_id: int) -> int:
        """The requested queue; a random one for a negative number."""
        if queue_id >= 0:
            return queue_id
        return random.randrange(max(1, topic.write_queue_nums))

    def check_size(self, body_size: int, properties_size: int) -> None:
        if body_size > self.body_bytes_max:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {body_size} bytes, more than {self.body_bytes_max}",
            )
        if properties_size > PROPERTIES_BYTES_MAX - 256:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {properties_size} bytes, more than "
                f"{PROPERTIES_BYTES_MAX - 256}",
            )

    def admit(self, message: Incoming, header: SendHeader, version: int) -> Incoming:
        """The message as it must be stored: as a retry, dead letter, delayed, timed or half
        message, or unchanged."""
        self.check_properties(message)
        begins = incoming.is_true(message.get(keys.TRANSACTION_PREPARED))
        is_half = begins and not message.reconsume_times
        if not is_half:
            message = _outside_transaction(message)
        if message.topic.startswith(names.RETRY_PREFIX):
            message = self._retried(message, header, version)
            if message.topic.startswith(names.DEAD_PREFIX):
                return message  # a dead letter is never delayed
        if is_half:
            if self._config.reject_transactions:
                raise RequestRejected(
                    ResponseCode.NO_PERMISSION,
                    "this broker rejects transactional messages (reject_transactions)",
                )
            if self._halves_are_full():
                raise _busy("transactional messages are undecided")
            return incoming.half(message)
        return self.redirect(message)

    def admit_reply(self, message: Incoming) -> Incoming:
        """Prepare a reply for storage: it is delivered at once, whatever its properties ask for."""
        self.check_properties(message)
        return _outside_transaction(message)

    def check_properties(self, message: Incoming) -> None:
        """Raises RequestRejected."""
        check_keys(message.properties)
        check_separators(message.properties)
        self.light_queues.check(message.topic, message.properties)

    def redirect(self, message: Incoming) -> Incoming:
        """Apply the delay rules, to ordinary messages and to those that a commit makes visible."""
        kind = message.sys_flag & flags.TRANSACTION_MASK
        if kind in (flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK):
            return message
        level = incoming.delay_level(message)
        if level > 0:
            return incoming.delayed(message, level, self._delay_levels)
        if b"TIMER_DEL" not in message.properties:
            return message
        now_ms = self._clock.now_ms()
        deliver_ms = incoming.delivery_time(message, now_ms)
        if deliver_ms is None or deliver_ms <= now_ms:
            return message
        if deliver_ms - now_ms > self._config.timer_delay_max_s * 1000:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"delivery in {(deliver_ms - now_ms) // 1000} s is too far ahead; at most "
                f"{self._config.timer_delay_max_s} s",
            )
        if self._timers_are_full():
            raise _busy("timed messages wait")
        return incoming.timed(message, deliver_ms)

    def _retried(self, message: Incoming, header: SendHeader, version: int) -> Incoming:
        """A message that a consumer sends to its retry topic: after too many retries it becomes a
        dead letter."""
        group_name = names.group_of_retry(message.topic)
        group = self._groups.get(group_name)
        if group is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group_name} does not exist"
            )
        most = group.retry_max_times
        if version >= RETRY_VERSION_MIN and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if message.reconsume_times <= most:
            return message
        topic = self._topics.ensure(names.dead_topic(group_name), queues=1)
        message = message.with_properties(
            {
                keys.DELAY: b"",
                keys.DLQ_ORIGIN_TOPIC: message.get(keys.RETRY_TOPIC) or b"",
                keys.DLQ_ORIGIN_MESSAGE_ID: message.get(keys.ORIGIN_MESSAGE_ID) or b"",
            }
        )
        return message._replace(topic=topic.topic_name, queue_id=0)


def _outside_transaction(message: Incoming) -> Incoming:
    """The message without transaction flags. Raises RequestRejected for one that claims a part in a
    transaction that it does not begin: no queue would ever hold it, although its sender got
    SEND_OK. Consumers that resend a committed message themselves may repeat its flag."""
    kind = message.sys_flag & flags.TRANSACTION_MASK
    if not kind:
        return message
    if not message.reconsume_times:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag {message.sys_flag:#x} makes the message part of a transaction, but its "
            "property TRAN_MSG is not true; set both to begin a transaction, or neither",
        )
    return message._replace(sys_flag=message.sys_flag & ~flags.TRANSACTION_MASK)


def _busy(what: str) -> RequestRejected:
    """Rejects a message that would have to be kept in memory, when the limit is reached."""
    return RequestRejected(
        ResponseCode.SYSTEM_BUSY,
        f"too many {what} for the memory of this broker; retry later",
    )


def split(
    message: Incoming, *, record_crc: bool, light_queues: LightQueues | None = None
) -> list[Entry]:
    """The messages of a batch. Raises RequestRejected, also for messages with light queues if
    `light_queues` is None.

    Their properties are finished: they end with the place of the checksum if there is one.
    """
    if message.topic.startswith(RETRY_PREFIX):
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "a retry topic does not accept batches")
    data = bytes(message.body)
    try:
        inner = decode_batch(data)
    except BatchError as error:
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
    _check_ordinary(message.properties)
    # Rare properties are searched for in all messages at once, and not in their bodies.
    texts = b"".join([own for _, _, own in inner])
    if texts.find(b"DEL") >= 0 or texts.find(keys.TRANSACTION_PREPARED) >= 0:
        for _, _, own in inner:
            _check_ordinary(own)
    if texts.find(ANY_PROPERTY) >= 0 or message.properties.find(ANY_PROPERTY) >= 0:
        _check_light_queues(message, [own for _, _, own in inner], light_queues)
    ending = CRC_PLACEHOLDER if record_crc else b""
    queue, _, outer, _, sys_flag, born, host, times, prepared = message.to_entry()
    # The batch has an id too. Behind the id of a message it would take precedence.
    without_id = message.with_properties({keys.UNIQ_KEY: b""}).properties + ending
    outer += ending
    has_checksum = texts.find(CRC_PROPERTY) >= 0
    new, kind = new_entry, Entry
    entries: list[Entry] = []
    for flag, body, own in inner:
        if len(own) > MANY_KEYS_BYTES:
            check_keys(own)
        text = properties.without(own, CRC_PROPERTY) if has_checksum else own
        if text and text[-1] != 2:
            text += b"\x02"
        if text.count(b"\x01") != text.count(b"\x02"):
            check_separators(own)
        # `find` takes half the time of `in`.
        text += without_id if text.find(b"UNIQ_KEY\x01") >= 0 else outer
        # Written out: a tuple with a starred part is built through a list.
        fields = (queue, body, text, flag, sys_flag, born, host, times, prepared)
        entries.append(new(kind, fields))
    return entries


def _check_light_queues(
    batch: Incoming, texts: list[bytes], light_queues: LightQueues | None
) -> None:
    """Raises RequestRejected for messages of a batch with invalid light queues."""
    if light_queues is None:
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is in light queues")
    for text in texts:
        whole = properties.with_trailing_separator(text) + batch.properties
        light_queues.check(batch.topic, whole)


def _check_ordinary(text: bytes) -> None:
    """Raises RequestRejected for properties of a delayed, timed or transactional message: consumers
    see all messages of a batch at once."""
    message = Incoming("", 0, b"", text)
    if delay_level(message) > 0 or delivery_time(message, 0) is not None:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "a message of the batch asks for a later delivery; send such messages one by one",
        )
    if is_true(message.get(keys.TRANSACTION_PREPARED)):
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "a message of the batch has TRAN_MSG; send transactional messages one by one",
        )
