"""The conditions of queries: of options, of tables, and what several kinds have in common."""

from spark_nats.conditions import Condition, set_codes

WRITES_NO_TABLE = Condition(
    "a statement that creates a table cannot write rows (saveAsTable, writeTo, CREATE TABLE ... AS), because Spark "
    "does not pass on a table's options when the table is read; use save(), and for reading {instead}"
)
NOWHERE_TO_WRITE = Condition(
    "the options do not say where to write: set the option 'stream' or 'bucket' or, for core NATS, 'subject' or "
    "'servers'; if this is a table, Spark has not passed on its options: {instead}"
)
OVERWRITE_IMPOSSIBLE = Condition(
    "mode 'overwrite' is not possible: published messages cannot be taken back; use mode('append'), and purge the "
    "stream yourself if that is what you want"
)
COLUMN_UNKNOWN = Condition(
    "column '{column}' cannot be written to {where}, and would be lost; {hint} (columns that can be written: {columns})"
)
COLUMN_OF_SOURCE = Condition(
    "column '{column}' cannot be written, and would be lost: it is {type}, and only the source's own column, "
    "{expected}, is left out; rename or drop it, or put it into '{into}' or 'headers'"
)
COLUMN_TYPE = Condition("column '{column}' must be {expected}, not {type}")
COLUMN_MISSING = Condition("the column '{column}' ({type}) is missing; there are {columns}")
ENDS_AFTER_LIMIT = Condition(
    "the option '{option}' is {limit}: with Trigger.AvailableNow, the query ends after this many, because PySpark "
    "{version} then runs only one micro-batch; start it again for the rest, leave the option out, or use PySpark 4.2 "
    "or newer"
)
BATCH_WRITTEN = Condition("{what} is written to {target}: {counts}, tasks: {tasks}")
OPTION_FOR_OTHERS = Condition("option '{option}' is only for {doing}")
OPTION_FOR_OTHER_MODE = Condition("option '{option}' is for {wanted}, not for {found}")
NOTHING_TO_READ = Condition(
    "the options do not say what to read: set the option 'stream', 'streamPattern' or 'bucket', or 'subject' alone to "
    "read core NATS as it is published, or 'objectStore' for objects, or 'table' for what the account holds{hint}"
)


OPTION_NOT_FOR_TABLES = Condition(
    "option '{option}' is not for tables of what an account holds, and contradicts the option 'table'"
)
TABLE_IS_FOR_BATCHES = Condition(
    "option 'table' is {table}, which is read in batches (spark.read), not in streaming: it says what an account holds "
    "at one time"
)
SUBJECT_NEEDS_SUBJECTS = Condition(
    "option 'subject' is for the table of subjects, and the option 'table' is {table}; drop it, or set 'table' to "
    "subjects"
)


PATH_UNUSED = Condition(
    "the path {path!r} has no meaning here; use the option 'stream' for the name of a stream, or 'bucket', or "
    "'subject' for core NATS{hint}"
)
UNKNOWN_OPTION = Condition("unknown option '{option}'; {hint}")
INVALID_OPTION = Condition("option '{option}' {problem}")
INVALID_CONTEXT = Condition("option 'context' sets '{option}', which {problem}")
OPTION_NEEDS_OPTION = Condition("option '{option}' needs the option {needed}")
OPTIONS_CONTRADICT = Condition("options '{option}' and '{other}' contradict each other; set one of them")
INVALID_TLS_OPTIONS = Condition("the options for TLS ({options}) cannot be used: {reason}")
OFFSETS_FOR_OTHERS = Condition("option '{option}' has offsets for {offsets}, but the streams to read are {streams}")
MORE_THAN_MOST = Condition(
    "option 'minOffsetsPerTrigger' is {least}, which is more than 'maxOffsetsPerTrigger', {most}; no micro-batch can "
    "satisfy both, so swap or correct them"
)
LOSS_ACCEPTED = Condition("{loss}; the query continues with {rest}")

set_codes(globals())
