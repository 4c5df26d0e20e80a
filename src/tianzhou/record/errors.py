"""What can be wrong with a record."""

from tianzhou.base.errors import TianzhouError, UsageError


class RecordTooLarge(UsageError):
    """A part of a message is longer than a record can hold."""


class RecordDamaged(TianzhouError):
    """Bytes that should be a record are not: a checksum, a length or a magic number disagrees."""
