"""The conditions of queries: of options, of tables, and what several kinds have in common."""

from spark_nats.conditions import Condition

WRITES_NO_TABLE = Condition(
    "[NATS_WRITES_NO_TABLE] a statement that creates a table cannot write rows (saveAsTable, writeTo, CREATE TABLE ... "
    "AS), because Spark does not pass on a table's options when the table is read; use save(), and for reading "
    "{instead}"
)
NOWHERE_TO_WRITE = Condition(
    "[NATS_NOWHERE_TO_WRITE] the options do not say where to write: set the option 'stream' or 'bucket' or, for core "
    "NATS, 'subject' or 'servers'; if this is a table, Spark has not passed on its options: {instead}"
)
OVERWRITE_IMPOSSIBLE = Condition(
    "[NATS_OVERWRITE_IMPOSSIBLE] mode 'overwrite' is not possible: published messages cannot be taken back; use "
    "mode('append'), and purge the stream yourself if that is what you want"
)
COLUMN_UNKNOWN = Condition(
    "[NATS_COLUMN_UNKNOWN] column '{column}' cannot be written to {where}, and would be lost; {hint} (columns that can "
    "be written: {columns})"
)
COLUMN_OF_SOURCE = Condition(
    "[NATS_COLUMN_OF_SOURCE] column '{column}' cannot be written, and would be lost: it is {type}, and only the "
    "source's own column, {expected}, is left out; rename or drop it, or put it into '{into}' or 'headers'"
)
COLUMN_TYPE = Condition("[NATS_COLUMN_TYPE] column '{column}' must be {expected}, not {type}")
COLUMN_MISSING = Condition("[NATS_COLUMN_MISSING] the column '{column}' ({type}) is missing; there are {columns}")
ENDS_AFTER_LIMIT = Condition(
    "[NATS_ENDS_AFTER_LIMIT] the option '{option}' is {limit}: with Trigger.AvailableNow, the query ends after this "
    "many, because PySpark {version} then runs only one micro-batch; start it again for the rest, leave the option "
    "out, or use PySpark 4.2 or newer"
)
BATCH_WRITTEN = Condition("[NATS_BATCH_WRITTEN] {what} is written to {target}: {counts}, tasks: {tasks}")
OPTION_FOR_OTHERS = Condition("[NATS_OPTION_FOR_OTHERS] option '{option}' is only for {doing}")
OPTION_FOR_OTHER_MODE = Condition("[NATS_OPTION_FOR_OTHER_MODE] option '{option}' is for {wanted}, not for {found}")
NOTHING_TO_READ = Condition(
    "[NATS_NOTHING_TO_READ] the options do not say what to read: set the option 'stream', 'streamPattern' or 'bucket', "
    "or 'subject' alone to read core NATS as it is published, or 'objectStore' for objects, or 'table' for what the "
    "account holds{hint}"
)


OPTION_NOT_FOR_TABLES = Condition(
    "[NATS_OPTION_NOT_FOR_TABLES] option '{option}' is not for tables of what an account holds, and contradicts the "
    "option 'table'"
)
TABLE_IS_FOR_BATCHES = Condition(
    "[NATS_TABLE_IS_FOR_BATCHES] option 'table' is {table}, which is read in batches (spark.read), not in streaming: "
    "it says what an account holds at one time"
)
SUBJECT_NEEDS_SUBJECTS = Condition(
    "[NATS_SUBJECT_NEEDS_SUBJECTS] option 'subject' is for the table of subjects, and the option 'table' is {table}; "
    "drop it, or set 'table' to subjects"
)


PATH_UNUSED = Condition(
    "[NATS_PATH_UNUSED] the path {path!r} has no meaning here; use the option 'stream' for the name of a stream, or "
    "'bucket', or 'subject' for core NATS{hint}"
)
UNKNOWN_OPTION = Condition("[NATS_UNKNOWN_OPTION] unknown option '{option}'; {hint}")
INVALID_OPTION = Condition("[NATS_INVALID_OPTION] option '{option}' {problem}")
INVALID_CONTEXT = Condition("[NATS_INVALID_CONTEXT] option 'context' sets '{option}', which {problem}")
OPTION_NEEDS_OPTION = Condition("[NATS_OPTION_NEEDS_OPTION] option '{option}' needs the option {needed}")
OPTIONS_CONTRADICT = Condition(
    "[NATS_OPTIONS_CONTRADICT] options '{option}' and '{other}' contradict each other; set one of them"
)
INVALID_TLS_OPTIONS = Condition("[NATS_INVALID_TLS_OPTIONS] the options for TLS ({options}) cannot be used: {reason}")
OFFSETS_FOR_OTHERS = Condition(
    "[NATS_OFFSETS_FOR_OTHERS] option '{option}' has offsets for {offsets}, but the streams to read are {streams}"
)
MORE_THAN_MOST = Condition(
    "[NATS_MORE_THAN_MOST] option 'minOffsetsPerTrigger' is {least}, which is more than 'maxOffsetsPerTrigger', "
    "{most}; no micro-batch can satisfy both, so swap or correct them"
)
LOSS_ACCEPTED = Condition("[NATS_LOSS_ACCEPTED] {loss}; the query continues with {rest}")
