"""What a person who declares or runs a pipeline is told."""

from tianzhou.base.errors import TianzhouError


class PipelineError(TianzhouError):
    """A pipeline can't be run as it stands; the message says where and what to do."""
