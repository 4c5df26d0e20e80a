"""Errors in the declaration or the run of a pipeline."""

from tianzhou.base.errors import TianzhouError


class PipelineError(TianzhouError):
    """A pipeline cannot run. The message says where the problem is and what to do."""
