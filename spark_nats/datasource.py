"""``format("nats")``: options in, the right reader or writer out.

Spark starts a Python process for each step of a query, and the first ones only look the format up and read its options.
So readers and writers are imported where they are made, and with them NumPy, PyArrow and TLS.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import astuple
from functools import partial

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_nats import sparkapi
from spark_nats.client.memory import once_a_while, parent_process
from spark_nats.conditions.options import OVERWRITE_IMPOSSIBLE
from spark_nats.conditions.spark import NOWHERE_TO_WRITE
from spark_nats.errors import OptionError
from spark_nats.kinds.streams.read.schema import BUCKET_SCHEMA, OBJECT_INFO_SCHEMA, OBJECT_SCHEMA, SCHEMA, TABLE_SCHEMAS
from spark_nats.kinds.streams.read.schema import check_schema as check_source_schema
from spark_nats.kinds.streams.write.schema import check_schema as check_sink_schema
from spark_nats.kinds.streams.write.schema import may_have_ids
from spark_nats.options import (
    BucketReadOptions,
    CoreReadOptions,
    ObjectReadOptions,
    TableReadOptions,
    WriteOptions,
    parse,
    parse_read,
    parse_write,
    parse_write_objects,
)
from spark_nats.options.hints import naming_options
from spark_nats.options.nearest import VIEW
from spark_nats.options.query import Target
from spark_nats.options.write import ObjectWriteOptions


class NatsDataSource(DataSource):
    """NATS streams and subjects as a Spark data source.

    Spark finds it by itself under the name ``nats``; ``spark.dataSource.register(NatsDataSource)`` works too.

    Raises:
        OptionError: an option is unknown, has an invalid value, or contradicts another.
        SchemaError: the schema has a column or a type that a message does not have.
        NatsError: for writing, the server cannot be reached or refuses the credentials.
    """

    @naming_options()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Here, so that load() and start() fail and not the first action; and so that files are read now, on the driver.
        self._settings = parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nats"

    def schema(self) -> str:
        """Return all columns of a message, of an entry of a KV bucket, or of a table of what an account holds.

        Of an object store these are all but the content, which is much, and is read where it is asked for.
        """
        target = self._settings.of(Target)
        return OBJECT_INFO_SCHEMA if target.object_store else self._columns(target)

    def _columns(self, target: Target) -> str:
        """Return all columns that a schema may have."""
        if target.object_store:
            return OBJECT_SCHEMA
        return TABLE_SCHEMAS[target.table] if target.table else BUCKET_SCHEMA if target.bucket else SCHEMA

    @naming_options()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        check_source_schema(schema, self._columns(self._settings.of(Target)))
        parsed = parse_read(self._settings, streaming=False)
        if isinstance(parsed, CoreReadOptions):
            from spark_nats.kinds.core.read import NatsCoreReader

            return NatsCoreReader(parsed, schema)
        if isinstance(parsed, BucketReadOptions):
            from spark_nats.kinds.buckets.read import NatsBucketReader

            return NatsBucketReader(parsed, schema)
        if isinstance(parsed, TableReadOptions):
            from spark_nats.kinds.tables.read import NatsTableReader

            return NatsTableReader(parsed, schema)
        if isinstance(parsed, ObjectReadOptions):
            from spark_nats.kinds.objects.read import NatsObjectReader

            return NatsObjectReader(parsed, schema)
        from spark_nats.kinds.streams.read.readers import NatsReader

        return NatsReader(parsed, schema)

    @naming_options()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        check_source_schema(schema, self._columns(self._settings.of(Target)))
        parsed = parse_read(self._settings, streaming=True)
        if isinstance(parsed, CoreReadOptions):
            from spark_nats.kinds.core.read import NatsCoreStreamReader

            return sparkapi.stream_reader(NatsCoreStreamReader(parsed, schema))
        if parsed.objects is not None:
            from spark_nats.kinds.objects.read import NatsObjectStreamReader

            return sparkapi.stream_reader(NatsObjectStreamReader(parsed, parsed.objects, schema))
        from spark_nats.kinds.streams.read.readers import NatsStreamReader

        return sparkapi.stream_reader(NatsStreamReader(parsed, schema))

    @naming_options()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        if overwrite:
            raise OptionError(OVERWRITE_IMPOSSIBLE())
        self._check_where_to_write()
        if self._settings.of(Target).object_store:
            to_store = parse_write_objects(self._settings, streaming=False)
            from spark_nats.kinds.objects.write import NatsObjectWriter, check_object_schema, prepare_objects

            check_object_schema(schema)
            prepare_objects(to_store)
            return NatsObjectWriter(to_store)
        parsed = parse_write(self._settings, streaming=False)
        check_sink_schema(schema, parsed)
        from spark_nats.kinds.streams.write.checks import prepare
        from spark_nats.kinds.streams.write.writers import NatsWriter

        mark = prepare(parsed, streaming=False, columns=schema.fieldNames())
        return NatsWriter(parsed, may_have_ids(schema, parsed), mark)

    @naming_options()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query. Output mode ``complete`` publishes the whole result each time."""
        self._check_where_to_write()
        if self._settings.of(Target).object_store:
            to_store = parse_write_objects(self._settings, streaming=True)
            from spark_nats.kinds.objects.write import NatsObjectStreamWriter, check_object_schema

            check_object_schema(schema)
            if not sparkapi.ends_a_micro_batch():
                prepared = f"{parent_process()}: prepared {astuple(to_store)}"
                once_a_while(prepared, partial(_prepare_objects, to_store), PREPARATION_COUNTS)
            return NatsObjectStreamWriter(to_store)
        parsed = parse_write(self._settings, streaming=True)
        check_sink_schema(schema, parsed)
        # Spark asks for a writer for each micro-batch, in a process of its own, and for another one when the tasks are
        # done. What fails there, because a server is away, would take the place of what has failed in a task.
        if not sparkapi.ends_a_micro_batch():
            columns = schema.fieldNames()
            prepared = f"{parent_process()}: prepared {astuple(parsed)} {columns}"
            once_a_while(prepared, partial(_prepare, parsed, columns), PREPARATION_COUNTS)
        from spark_nats.kinds.streams.write.writers import NatsStreamWriter

        return NatsStreamWriter(parsed, may_have_ids(schema, parsed))

    def _check_where_to_write(self) -> None:
        """Check that some option is set: where none is, rows would go to core NATS of this machine, and vanish."""
        if not self._settings.given:
            raise OptionError(NOWHERE_TO_WRITE(instead=VIEW))


PREPARATION_COUNTS = 60.0
"""Seconds for which a streaming query does not prepare to write again on the driver."""


def _prepare(options: WriteOptions, columns: list[str], known: bool) -> None:
    """Do on the driver what would fail in every task and each of its attempts, and wait for servers that are away."""
    from spark_nats.client.retrying import retrying
    from spark_nats.kinds.streams.write.checks import prepare

    what = f"writing to {options.stream or 'core NATS'}"
    retrying(lambda: prepare(options, streaming=True, columns=columns), options.retries, what, established=known)


def _prepare_objects(options: ObjectWriteOptions, known: bool) -> None:
    """Do the same where an object store is written to."""
    from spark_nats.client.retrying import retrying
    from spark_nats.kinds.objects.write import prepare_objects

    what = f"writing to object store {options.store}"
    retrying(lambda: prepare_objects(options), options.retries, what, established=known)
