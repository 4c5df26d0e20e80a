"""What can go wrong between master and slave. Each closes the connection, with its reason."""

from tianzhou.base.errors import Retry, TianzhouError


class PeerRefused(TianzhouError):
    """The other side is not who it should be, or says what can't be."""

    retry = Retry.SAME_BROKER


class PeerSilent(PeerRefused):
    """Nothing was heard for too long."""


class Superseded(PeerRefused):
    """The other side knows of a later master than this one."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch
