"""The topic `payments` as a streaming table: each run adds the messages that are new."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

SCHEMA = "orderId STRING, amount DECIMAL(18,2), paidAt TIMESTAMP"


@dp.table
def payments() -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameserver", spark.conf.get("tianzhou.nameserver"))
        .option("topic", "payments")
        .option("startingOffsets", "earliest")
        .load()
    )
    body = F.from_json(F.col("body").cast("string"), SCHEMA)
    return messages.select(
        F.col("tags").alias("city"), body.alias("payment"), "queueId", "queueOffset"
    ).select("city", "payment.*", "queueId", "queueOffset")
