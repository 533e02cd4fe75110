"""What several kinds of queries say."""

from spark_nats.conditions import Condition

WRITES_NO_TABLE = Condition(
    "a statement that creates a table cannot write rows (saveAsTable, writeTo, CREATE TABLE ... AS), because "
    "Spark does not pass on a table's options when the table is read; use save(), and for reading {instead}",
    "write with `save()`; for SQL, create a temporary view. Nothing was sent, and Spark drops the table. (We "
    "recognize such a write because Spark runs it within another statement)",
)
NOWHERE_TO_WRITE = Condition(
    "the options do not say where to write: set the option 'stream' or 'bucket' or, for core NATS, 'subject' or "
    "'servers'; if this is a table, Spark has not passed on its options: {instead}",
    "the same for rows inserted into a table; or no option is set at all",
)
OVERWRITE_IMPOSSIBLE = Condition(
    "mode 'overwrite' is not possible: published messages cannot be taken back; use mode('append'), and purge "
    "the stream yourself if that is what you want",
    'use `mode("append")`',
)
COLUMN_UNKNOWN = Condition(
    "column '{column}' cannot be written to {where}, and would be lost; {hint} (columns that can be written: "
    "{columns})",
    "rename or drop it; for Kafka's columns, the error says what to rename them to",
)
COLUMN_OF_SOURCE = Condition(
    "column '{column}' cannot be written, and would be lost: it is {type}, and only the source's own column, "
    "{expected}, is left out; rename or drop it, or put it into '{into}' or 'headers'",
    "it has the name of one of the source's columns, but another type: rename or drop it",
)
COLUMN_TYPE = Condition(
    "column '{column}' must be {expected}, not {type}",
    "cast it, rename it, or use another one",
)
COLUMN_MISSING = Condition("the column '{column}' ({type}) is missing; there are {columns}")
ENDS_AFTER_LIMIT = Condition(
    "the option '{option}' is {limit}: with Trigger.AvailableNow, the query ends after this many, because "
    "PySpark {version} then runs only one micro-batch; start it again for the rest, leave the option out, or use "
    "PySpark 4.2 or newer",
    "PySpark 4.0 and 4.1",
)
BATCH_WRITTEN = Condition(
    "{what} is written to {target}: {counts}, tasks: {tasks}",
    "on the driver, when all tasks of a batch or a micro-batch have ended",
)
