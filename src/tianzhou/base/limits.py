"""Limits of the formats and the protocol, each with its reason.

Limits on memory, time and counts are defined in the modules that enforce them. Relations between
these limits are asserted at the end.
"""

from typing import Final

INT32_MAX: Final = (1 << 31) - 1
"""Java's largest int. A counter that reaches it stays there."""

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Java peers close a connection that announces more than this."""

HEADER_BYTES_MAX: Final = 256 * 1024
"""A send header carries at most 32 KiB of properties, JSON may escape each byte as six; the rest
is room to spare. A longer header is a mistake or an attack."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""RocketMQ's default `maxMessageSize`."""

PROPERTIES_BYTES_MAX: Final = 32767
"""The length is a signed 16-bit number in the record."""

TOPIC_BYTES_MAX: Final = 127
"""What every client can read; longer names need the second record version."""

TOPIC_BYTES_MAX_V2: Final = 32767
"""The length is a signed 16-bit number in version 2 records."""

TOPIC_DIRECTORY_BYTES_MAX: Final = 255
"""A topic names a directory of queues, and file systems allow no longer names."""

QUEUE_OFFSET_MAX: Final = 1 << 58
"""A queue names its files by 20 times an offset, which must fit 63 bits."""

RECORD_BYTES_MAX: Final = BODY_BYTES_MAX + 64 * 1024
"""As RocketMQ 5: the body limit and 64 KiB for everything else."""

BLANK_BYTES_MIN: Final = 8
"""A file without room for the next record ends with a blank record: size and magic."""

COMMIT_LOG_FILE_BYTES: Final = 1024 * 1024 * 1024
"""RocketMQ's default, so that RocketMQ and Tianzhou can open each other's directories."""

CONSUME_QUEUE_FILE_UNITS: Final = 300_000
"""RocketMQ's default, as above: a file of 6,000,000 bytes."""

PULL_BYTES_MAX: Final = FRAME_BYTES_MAX - 2 * HEADER_BYTES_MAX
"""A pull response is one frame."""

BATCH_MESSAGES_MAX: Final = 65_536
"""Messages in one batch body. The 4 MiB body limit would allow about 190,000 empty ones, which no
producer intends, and each costs a full record."""

assert RECORD_BYTES_MAX + BLANK_BYTES_MIN <= COMMIT_LOG_FILE_BYTES
assert PULL_BYTES_MAX + HEADER_BYTES_MAX < FRAME_BYTES_MAX
assert RECORD_BYTES_MAX < PULL_BYTES_MAX
assert PROPERTIES_BYTES_MAX * 6 < HEADER_BYTES_MAX
