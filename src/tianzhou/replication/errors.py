"""Errors between master and slave. Each closes the connection and carries the reason."""

from tianzhou.base.errors import Retry, TianzhouError


class PeerRefused(TianzhouError):
    """The peer is not the expected one, or sent something invalid."""

    retry = Retry.SAME_BROKER


class PeerSilent(PeerRefused):
    """The peer sent nothing for too long."""


class Superseded(PeerRefused):
    """The peer knows a later master than this one."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch
