"""Errors of the store, each with its values and a next step."""

from tianzhou.base.errors import Retry, TianzhouError


class StoreError(TianzhouError):
    """Root of the store's own errors."""


class StoreDamaged(StoreError):
    """Acknowledged bytes or a required file are damaged or missing."""

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
    """There is no space for a write. Nothing was stored; writes work again when space is freed."""

    retry = Retry.OTHER_BROKER


class FlushTimeout(StoreError):
    """The disk did not sync in time. The appended messages are in the log, and may still be
    lost."""

    retry = Retry.OTHER_BROKER


class RawRefused(StoreError):
    """Replicated bytes, or an offset for a truncation, do not fit this log. Nothing was changed."""


class StoreFenced(StoreError):
    """A write or a sync failed. The contents of the disk are unknown, so nothing more is
    acknowledged; a restart recovers what is on the disk."""

    retry = Retry.OTHER_BROKER
