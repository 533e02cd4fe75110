"""``format("nats")``: options in, the right reader or writer out.

Spark starts a Python process for each step of a query, and the first ones only look the format up and read its options.
So this module imports readers and writers, and with them NumPy, PyArrow and TLS, only where it makes them.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_nats import sparkapi
from spark_nats.conditions.queries import OVERWRITE_IMPOSSIBLE
from spark_nats.errors import OptionError
from spark_nats.kinds.queries import check_and_choose_operation, check_any_option_set, kind_of, parse_options
from spark_nats.kinds.streams.read.schema import check_schema
from spark_nats.options.hints import errors_for_spark


class NatsDataSource(DataSource):
    """NATS streams and subjects as a Spark data source.

    Spark finds this class under the name ``nats``; ``spark.dataSource.register(NatsDataSource)`` works too.

    Raises:
        OptionError: an option is unknown, has an invalid value, or contradicts another.
        SchemaError: the schema has a column or a type that a message does not have.
        NatsError: for writing, the server cannot be reached or refuses the credentials.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Spark may show the local variables of each frame that an error passes (tracebackWithLocals, since 4.1), and
        # options have secrets.
        del options
        with errors_for_spark():
            # Parsed here, so that load() and start() fail before any action, and the driver reads the options' files.
            self._settings = parse_options(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nats"

    def schema(self) -> str:
        """Return the default columns, such as those of a message, without the columns that are read only on request."""
        kind = kind_of(self._settings, writing=False)
        return kind.default_columns or kind.columns(self._settings.given)[1]

    @errors_for_spark()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        reader: DataSourceReader = self._make_reader(schema, streaming=False)
        return reader

    @errors_for_spark()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return sparkapi.adapt_stream_reader(self._make_reader(schema, streaming=True))

    def _make_reader(self, schema: StructType, streaming: bool) -> Any:
        check_schema(schema, *kind_of(self._settings, writing=False).columns(self._settings.given))
        use, query = check_and_choose_operation(self._settings, False, streaming)
        return use.make_reader_or_writer(query, schema)

    @errors_for_spark()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        if overwrite:
            raise OptionError(OVERWRITE_IMPOSSIBLE())
        writer: DataSourceWriter = self._make_writer(schema, streaming=False)
        return writer

    @errors_for_spark()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query; output mode ``complete`` publishes the whole result each time."""
        writer: DataSourceStreamWriter = self._make_writer(schema, streaming=True)
        return writer

    def _make_writer(self, schema: StructType, streaming: bool) -> Any:
        check_any_option_set(self._settings)
        use, query = check_and_choose_operation(self._settings, True, streaming)
        return use.make_reader_or_writer(query, schema)
