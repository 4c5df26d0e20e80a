"""Errors of the data sources: one sentence with the values, and a condition in Spark's style."""

import re
from typing import Final

from pyspark.errors import PySparkRuntimeError, PySparkValueError

_OURS: Final = re.compile(r"(?:TableError|PipelineError): (.+)|(\[ROCKETMQ\..+)")
_RAISED: Final = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)


class SourceError(PySparkValueError):
    """A query or one of its options is invalid. Raised on the driver, before data is read."""

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(f"[ROCKETMQ.{condition}] {message}")
        self.condition = condition


class DataLoss(PySparkRuntimeError):
    """Messages that the query should read no longer exist."""

    def __init__(self, message: str) -> None:
        super().__init__(f"[ROCKETMQ.DATA_LOSS] {message}")


def sentence_of(error: BaseException) -> str:
    """Return one sentence for an error, without stack traces and query plans.

    Prefers the innermost error of this package, then the error of a Python function, then Spark's.
    """
    text = str(error).strip()
    ours = _OURS.findall(text)
    if ours:
        return (ours[-1][0] or ours[-1][1]).strip()
    first = text.partition("\n")[0].rstrip(";")  # Spark prints a plan after the sentence
    raised = _RAISED.findall(text)
    if not raised:
        return first or "Spark gave no reason"
    return f"{first.partition(' Traceback (')[0].rstrip(':')}: {raised[-1]}"
