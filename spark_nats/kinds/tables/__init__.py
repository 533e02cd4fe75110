"""Tables of the account's inventory."""

from spark_nats.conditions.queries import OPTION_NOT_FOR_TABLES, TABLE_IS_FOR_BATCHES
from spark_nats.kinds.kind import Kind, Operation
from spark_nats.kinds.tables.options import TABLE_SCHEMAS, TableReadOptions

TABLES = Kind(
    precedence=4,
    named_by=("table",),
    called="",
    columns=lambda given: (f"the table of {given['table']}", TABLE_SCHEMAS[given["table"]]),
    read=Operation(TableReadOptions, "tables.read:NatsTableReader"),
    not_streamed=lambda given: TABLE_IS_FOR_BATCHES(table=given["table"]),
    needed=lambda option, writing: OPTION_NOT_FOR_TABLES(option=option),
    unsuited=lambda option, writing: OPTION_NOT_FOR_TABLES(option=option),
)
