"""`format("rocketmq")`: topics as tables, for reading and writing, batches and streams."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tianzhou.spark.batch_reader import NarrowedReader, TopicReader
from tianzhou.spark.errors import SourceError
from tianzhou.spark.options import read_options_of, write_options_of
from tianzhou.spark.schema import TOPIC, table_schema
from tianzhou.spark.stream_reader import TopicStreamReader
from tianzhou.spark.writer import TopicStreamWriter, TopicWriter


class RocketMQ(DataSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        # Whether it is a batch or a stream is not known here; the reader looks at all options.
        columns = self.options.get("columns", "")
        asked = [word.strip() for word in columns.split(",") if word.strip()]
        return table_schema(TOPIC, asked)

    def reader(self, schema: StructType) -> TopicReader:
        options = read_options_of(self.options, is_stream=False)
        return (NarrowedReader if options.pushdown else TopicReader)(options, schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        return TopicStreamReader(read_options_of(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        if overwrite:
            raise SourceError(
                "APPEND_ONLY", 'messages of a topic are never replaced: use mode("append")'
            )
        return TopicWriter(write_options_of(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        if overwrite:
            raise SourceError(
                "APPEND_ONLY", 'messages of a topic are never replaced: use outputMode("append")'
            )
        return TopicStreamWriter(write_options_of(self.options, is_stream=True), schema)
