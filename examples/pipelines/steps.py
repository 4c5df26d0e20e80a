"""Steps of pipelines in this directory: DataFrame in, DataFrame out."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def with_city(rows: DataFrame) -> DataFrame:
    """Add the city from the tag, or `nowhere` for a payment without a tag."""
    return rows.withColumn("city", F.coalesce("tags", F.lit("nowhere")))
