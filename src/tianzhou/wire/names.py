"""Names and numbers of the protocol that clients and servers must agree on.

Each value is written here once. `tests/tidy/test_protocol_names.py` rejects the same literals
anywhere else in the product.
"""

from typing import Final

DEFAULT_TOPIC: Final = "TBW102"
"""The topic whose route a producer borrows for a topic that does not exist yet."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Messages with a delay level wait here, one queue per level."""
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Half messages: sent in a transaction that is not committed yet."""
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Which half messages were committed or rolled back."""
CHECKED_OUT_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages whose producer did not answer any of the allowed check-backs."""
HEARTBEAT_SYNC_TOPIC: Final = "DefaultHeartBeatSyncerTopic"
"""Proxies of RocketMQ 5 exchange heartbeats here."""

SYSTEM_PREFIX: Final = "rmq_sys_"
SYSTEM_PREFIX_OLD: Final = "RMQ_SYS_"
"""RocketMQ 4 wrote the prefix in capitals; the topics of transactions and traces still do."""
TIMER_TOPIC: Final = SYSTEM_PREFIX + "wheel_timer"
NAMESPACE_PREFIX: Final = "%SYS%"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
RETRY_PREFIX: Final = "%RETRY%"
"""`%RETRY%group` holds messages that the group failed to consume and will receive again."""
DEAD_LETTER_PREFIX: Final = "%DLQ%"
"""`%DLQ%group` holds messages that the group failed to consume for the last time."""

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group of administrative tools; every broker has it."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = SYSTEM_GROUP_PREFIX + "TRANS"

MASTER_ID: Final = 0
"""The broker id of a master; slaves have higher ids."""

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the NameServers' key-value table. The key is an ordered topic, the value
`broker-a:8;broker-b:8`: how many queues each broker has. Producers write to these queues only."""
CHANGED_TOPICS: Final = "changedTopics"
"""Header field of NOTIFY_CONSUMER_IDS_CHANGED, Tianzhou's own: topics whose queues or permission
changed, separated by commas; empty: more than fit. Without it the members of the group changed."""

PERM_INHERIT: Final = 1
"""New topics may be created from this one."""
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_PRIORITY: Final = 8
"""Reserved by RocketMQ; no server gives it a meaning."""
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE
PERM_ALL: Final = PERM_INHERIT | PERM_READ_WRITE | PERM_PRIORITY

PULL_COMMIT_OFFSET: Final = 1
"""Bits of `sysFlag` in a pull. This one: the request commits an offset."""
PULL_SUSPEND: Final = 2
"""The broker may hold the request until a message arrives."""
PULL_SUBSCRIPTION: Final = 4
"""The request carries its own subscription."""
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16
