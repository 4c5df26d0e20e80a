"""`format("rocketmq")`: topics as tables, for reading and writing, in batches and streams.

Spark starts a Python process for every stream, and one to plan every batch. Each process imports
only the part of the source that it needs.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tianzhou.spark.errors import SourceError
from tianzhou.spark.options import check_read_options, read_options_of, write_options_of
from tianzhou.spark.schema import TOPIC, table_schema

if TYPE_CHECKING:
    from tianzhou.spark.batch_reader import TopicReader
    from tianzhou.spark.stream_reader import RejectedStream, TopicStreamReader
    from tianzhou.spark.writer import TopicStreamWriter, TopicWriter


class RocketMQ(DataSource):
    """The data source `rocketmq`: topics as tables.

        spark.read.format("rocketmq").option("nameserver", "127.0.0.1:9876").load("orders")

    Spark calls the methods. They raise SourceError for invalid options.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        # Invalid options are reported here, when the table is loaded. Whether Spark reads a batch
        # or a stream is not known yet.
        return table_schema(TOPIC, check_read_options(self.options).get("columns", ()))

    def reader(self, schema: StructType) -> "TopicReader":
        from tianzhou.spark.batch_reader import NarrowedReader, TopicReader

        options = read_options_of(self.options, is_stream=False)
        return (NarrowedReader if options.pushdown else TopicReader)(options, schema)

    def streamReader(self, schema: StructType) -> "TopicStreamReader | RejectedStream":
        from tianzhou.spark.stream_reader import RejectedStream, TopicStreamReader

        try:
            return TopicStreamReader(read_options_of(self.options, is_stream=True), schema)
        except SourceError as error:
            return RejectedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> "TopicWriter":
        from tianzhou.spark.writer import TopicWriter

        if overwrite:
            raise SourceError(
                "APPEND_ONLY", 'messages of a topic cannot be replaced; use mode("append")'
            )
        return TopicWriter(write_options_of(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TopicStreamWriter":
        from tianzhou.spark.writer import TopicStreamWriter

        if overwrite:
            raise SourceError(
                "APPEND_ONLY", 'messages of a topic cannot be replaced; use outputMode("append")'
            )
        return TopicStreamWriter(write_options_of(self.options, is_stream=True), schema)
