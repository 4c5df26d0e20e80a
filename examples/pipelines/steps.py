"""Steps of pipelines in this directory: DataFrame in, DataFrame out."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def with_city(rows: DataFrame) -> DataFrame:
    """Tags are cities, and a payment without one is from nowhere."""
    return rows.withColumn("city", F.coalesce("tags", F.lit("nowhere")))
