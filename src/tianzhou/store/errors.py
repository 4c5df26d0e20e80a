"""What can go wrong in a store, each with the values and what to do."""

from tianzhou.base.errors import Retry, TianzhouError


class StoreError(TianzhouError):
    """Root of the store's own errors."""


class StoreDamaged(StoreError):
    """Bytes that were acknowledged, or a file that must be there, are not what they should be."""

    def __init__(self, path: str, reason: str, *, offset: int | None = None) -> None:
        where = path if offset is None else f"{path} at offset {offset}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class StoreRefused(StoreError):
    """The directory cannot be opened for writing in its current state. Nothing in it was
    changed."""

    def __init__(self, message: str, *, loss_at: int = -1) -> None:
        super().__init__(message)
        self.loss_at = loss_at
        """The value of `accept_loss_at` that allows the store to open anyway; -1 if none does."""


class StoreLocked(StoreError):
    """Another process owns this directory."""


class StoreClosed(StoreError):
    """The store was closed; nothing more can be written or read."""

    retry = Retry.OTHER_BROKER


class DiskFull(StoreError):
    """No room for what should be written. Nothing was stored; it works again when space is back."""

    retry = Retry.OTHER_BROKER


class FlushTimeout(StoreError):
    """The disk did not sync in time. What was appended is in the log, and may still be lost."""

    retry = Retry.OTHER_BROKER


class RawRefused(StoreError):
    """Bytes of another log, or a place to cut ours, that do not fit. Nothing was changed."""


class StoreFenced(StoreError):
    """A write or a flush failed. What the disk holds is unknown, so nothing is acknowledged any
    more; a restart recovers what is really there."""

    retry = Retry.OTHER_BROKER
