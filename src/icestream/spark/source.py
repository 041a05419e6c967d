"""What Spark is told of: the name `icestream`, the columns of a topic, and its readers."""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from icestream.spark.batch import TopicReader
from icestream.spark.columns import frame_schema
from icestream.spark.options import Options
from icestream.spark.stream import TopicStreamReader

NAME = "icestream"


class IcestreamSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = Options.parse(self.options)
        with options.connect() as client:
            return frame_schema(client.describe_topic(options.topic), options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(Options.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TopicStreamReader(Options.parse(self.options), schema)


def register(spark: SparkSession) -> None:
    """Have a session know `spark.read.format("icestream")` and `spark.readStream.format("icestream")`."""
    spark.dataSource.register(IcestreamSource)
