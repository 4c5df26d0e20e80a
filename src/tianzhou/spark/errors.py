"""What a query is told: one sentence with the values, under a name in Spark's style."""

import re
from typing import Final

from pyspark.errors import PySparkRuntimeError, PySparkValueError

_OURS: Final = re.compile(r"(?:TableError|PipelineError): (.+)|(\[ROCKETMQ\..+)")
_RAISED: Final = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)


class SourceError(PySparkValueError):
    """Something in the query or its options can't be: found on the driver, before data moves."""

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(f"[ROCKETMQ.{condition}] {message}")
        self.condition = condition


class DataLoss(PySparkRuntimeError):
    """Messages that should be read are gone."""

    def __init__(self, message: str) -> None:
        super().__init__(f"[ROCKETMQ.DATA_LOSS] {message}")


def sentence_of(error: BaseException) -> str:
    """The sentence of the innermost error that is ours, of a Python function, or of Spark, without
    the stacks and plans around it."""
    text = str(error).strip()
    ours = _OURS.findall(text)
    if ours:
        return (ours[-1][0] or ours[-1][1]).strip()
    first = text.partition("\n")[0].rstrip(";")  # behind it Spark prints a plan
    raised = _RAISED.findall(text)
    if not raised:
        return first or "for a reason that Spark does not tell"
    return f"{first.partition(' Traceback (')[0].rstrip(':')}: {raised[-1]}"
