"""Reserved names, and the rules for names that users choose.

First the properties that clients and brokers give a meaning to; users may not set them by hand.
They are bytes, because property strings are searched as bytes. Case matters: `TAGS`, not `tags`.
Then the rules for topics, tags and keys.
"""

import re
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.limits import TOPIC_BYTES_MAX

_TOPIC: Final = re.compile(r"[%|A-Za-z0-9_-]+")

# Set by producers on behalf of their users.
KEYS: Final = b"KEYS"
TAGS: Final = b"TAGS"
WAIT: Final = b"WAIT"
DELAY: Final = b"DELAY"
BUYER_ID: Final = b"BUYER_ID"
SHARDING_KEY: Final = b"__SHARDINGKEY"
UNIQ_KEY: Final = b"UNIQ_KEY"
EXTEND_UNIQ_INFO: Final = b"EXTEND_UNIQ_INFO"
INSTANCE_ID: Final = b"INSTANCE_ID"
MSG_TYPE: Final = b"MSG_TYPE"
TRACE_CONTEXT: Final = b"TRACE_CONTEXT"

# Where a message came from and where it should really go: delay, retry, dead letters.
REAL_TOPIC: Final = b"REAL_TOPIC"
REAL_QUEUE_ID: Final = b"REAL_QID"
RETRY_TOPIC: Final = b"RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = b"ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = b"RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = b"MAX_RECONSUME_TIMES"
DLQ_ORIGIN_TOPIC: Final = b"DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = b"DLQ_ORIGIN_MESSAGE_ID"
FORWARD_QUEUE_ID: Final = b"PROPERTY_FORWARD_QUEUE_ID"
REDIRECT: Final = b"REDIRECT"
TRANSFER_FLAG: Final = b"TRANSFER_FLAG"
CORRECTION_FLAG: Final = b"CORRECTION_FLAG"
MQ2_FLAG: Final = b"MQ2_FLAG"
DUP_INFO: Final = b"DUP_INFO"

# Transactions.
TRANSACTION_PREPARED: Final = b"TRAN_MSG"
PRODUCER_GROUP: Final = b"PGROUP"
TRANSACTION_ID: Final = b"__transactionId__"
TRANSACTION_CHECK_TIMES: Final = b"TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = b"TRAN_PREPARED_QUEUE_OFFSET"
PARKED_OFFSET: Final = b"TRAN_PARKED_OFFSET"
CHECK_IMMUNITY_TIME: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"

# Added by brokers, or by consumers on arrival.
MSG_REGION: Final = b"MSG_REGION"
TRACE_ON: Final = b"TRACE_ON"
CLUSTER: Final = b"CLUSTER"
MIN_OFFSET: Final = b"MIN_OFFSET"
MAX_OFFSET: Final = b"MAX_OFFSET"
CONSUME_START_TIME: Final = b"CONSUME_START_TIME"
BORN_HOST: Final = b"__BORNHOST"
BORN_TIMESTAMP: Final = b"BORN_TIMESTAMP"
RECORD_CRC: Final = b"__CRC32#"

# Request and reply.
CORRELATION_ID: Final = b"CORRELATION_ID"
REPLY_TO_CLIENT: Final = b"REPLY_TO_CLIENT"
TTL: Final = b"TTL"
ARRIVE_TIME: Final = b"ARRIVE_TIME"
PUSH_REPLY_TIME: Final = b"PUSH_REPLY_TIME"

# Pop consumption, inner batches, several queues for one record.
POP_CHECKPOINT: Final = b"POP_CK"
POP_CHECKPOINT_OFFSET: Final = b"POP_CK_OFFSET"
FIRST_POP_TIME: Final = b"1ST_POP_TIME"
INNER_COUNT: Final = b"INNER_NUM"
INNER_BASE: Final = b"INNER_BASE"
INNER_MULTI_DISPATCH: Final = b"INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = b"INNER_MULTI_QUEUE_OFFSET"

# Delivery at any time.
TIMER_DELAY_SEC: Final = b"TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = b"TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = b"TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS: Final = b"TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = b"TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = b"TIMER_ROLL_TIMES"
TIMER_OUT_MS: Final = b"TIMER_OUT_MS"
TIMER_DELETE_UNIQ_KEY: Final = b"TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = b"TIMER_DELAY_LEVEL"

# Read off the constants above, so that a name can't be forgotten here.
RESERVED: Final = frozenset(value for value in list(globals().values()) if type(value) is bytes)

TRANSIENT_PREFIX: Final = b"__RMQ.TRANSIENT."
"""Names that begin so live in a client's memory and are never stored."""


def is_reserved(name: str | bytes) -> bool:
    if isinstance(name, str):
        name = name.encode("utf-8", "replace")
    return name in RESERVED or name.startswith(TRANSIENT_PREFIX)


def checked_topic(topic: str) -> str:
    """The topic, if every client can name and read it. Raises UsageError."""
    try:
        is_legal = _TOPIC.fullmatch(topic)
    except TypeError as error:
        kind = type(topic).__name__
        raise UsageError(f"topic {repr(topic)[:42]} is of type {kind}; it must be text") from error
    if not is_legal:
        raise UsageError(f"topic {topic!r} is not made of letters, digits and % | _ - only")
    if len(topic) > TOPIC_BYTES_MAX:
        raise UsageError(f"topic {topic!r} has {len(topic)} bytes; at most {TOPIC_BYTES_MAX}")
    return topic


def checked_tag(tag: str) -> str:
    """The tag, if a consumer can subscribe to it. Raises UsageError."""
    # An expression `a || b` chooses between tags, and blanks around a tag are stripped from it.
    try:
        if not tag or "||" in tag or tag != tag.strip():
            raise UsageError(f"tag {tag!r} is empty, has || in it or blanks around it")
    except (TypeError, AttributeError) as error:
        raise UsageError(f"tag {tag!r} is not text; a message has one tag") from error
    return tag


def checked_key(key: str) -> str:
    """The key, if the message can be found by it. Raises UsageError."""
    try:
        if not key or " " in key:
            raise UsageError(
                f"key {key!r} is empty or has a space in it; give several keys as a list"
            )
    except TypeError as error:
        raise UsageError(f"key {key!r} is not text; write it as str") from error
    return key
