"""What a query is told: one sentence with the values, under a name in Spark's style."""

from pyspark.errors import PySparkRuntimeError, PySparkValueError


class SourceError(PySparkValueError):
    """Something in the query or its options can't be: found on the driver, before data moves."""

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(f"[ROCKETMQ.{condition}] {message}")
        self.condition = condition


class DataLoss(PySparkRuntimeError):
    """Messages that should be read are gone."""

    def __init__(self, message: str) -> None:
        super().__init__(f"[ROCKETMQ.DATA_LOSS] {message}")
