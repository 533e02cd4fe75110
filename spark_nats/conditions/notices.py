"""What the log says at INFO."""

from spark_nats.conditions import Condition

READS_ANEW = Condition(
    "stream {stream}: gave up a consumer ({reason}); another one resumes at sequence {sequence}",
    "a consumer was lost: a server has restarted, a replica lags, or rows are consumed slowly. Normal, unless "
    "the log has nothing else",
)
WAITS_FOR_PLACE = Condition(
    "stream {stream}: waiting for a place among its consumers (max_consumers)",
    "to read faster, run fewer tasks at once or raise the limit",
)
DURABLE_MADE = Condition(
    "stream {stream}: created the durable consumer {consumer}",
    "the first start of a query that consumes",
)
ROWS_NOT_TAKEN = Condition(
    "stream {stream} does not accept rows at the moment: {reason}",
    "a leader is being elected",
)
ROWS_SENT_AGAIN = Condition(
    "stream {stream}: it is unknown which of {rows} rows are stored; they are sent again",
    "acknowledgements were lost, with a leader or on the way; message ids prevent storing the rows twice",
)
BEGUN_BEFORE = Condition(
    "{task} was begun before: {stored} of its {rows} rows were stored then",
    "a replay, and how many rows it left out",
)
FIRST_TIME = Condition(
    "the state bucket {bucket} has no entry for this query; stream {stream} shows that {task} is written for the "
    "first time",
    "`deduplicate` was not `exact` before, or the bucket is new",
)
IDS_READ_BACK = Condition(
    "stream {stream}: of {messages} messages after sequence {sequence}, {ids} have relevant message ids",
    "the same: what was read back for it",
)
BATCH_PLANNED = Condition(
    "{what}: {ranges}; {sequences:,} sequences{left}, tasks: {tasks}",
    "on the driver, before a batch or a micro-batch is read; *left* is what remains in the streams after it",
)
STILL_READING = Condition(
    "reading {stream}, sequences {start} to {last}: {rows:,} rows so far, {left:,} sequences left, {rate:,.0f} a "
    "second{time}",
    "a task that reads for long; every 10 s",
)
STILL_WRITING = Condition(
    "writing to {stream}, {task}: {rows:,} rows stored so far, {rate:,.0f} a second; {in_flight:,} of at most "
    "{window:,} in flight, {resent:,} sent again",
    "a task that writes for long; every 10 s. If *at most* is far below `maxInFlight`, or many rows are sent "
    "again, the stream cannot accept more",
)
STILL_SENDING = Condition(
    "writing to core NATS, {task}: {rows:,} rows processed by the server so far, {rate:,.0f} a second",
    "the same for core NATS, without acknowledgements",
)
BATCH_WRITTEN = Condition(
    "{what} is written to {target}: {counts}, tasks: {tasks}",
    "on the driver, when all tasks of a batch or a micro-batch have ended",
)
QUERY_LAG = Condition(
    "{lag}",
    "`LagListener`: how far behind a query is",
)
NOT_MEASURED = Condition(
    "stream {stream}: its messages cannot be measured, so their average size counts: {reason}",
    "`maxBytesPerTrigger` uses the stream's average message size",
)
