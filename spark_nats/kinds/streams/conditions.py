"""Errors in the options of queries of streams."""

from spark_nats.conditions import Condition

OPTION_FOR_CORE = Condition(
    "[NATS_OPTION_FOR_CORE] option '{option}' is for {doing} core NATS, and contradicts the option 'stream'"
)
OPTION_NEEDS_STREAM = Condition(
    "[NATS_OPTION_NEEDS_STREAM] option '{option}' needs the option 'stream'; without it {otherwise}"
)
PROGRESS_WITH_CONSUME = Condition(
    "[NATS_PROGRESS_WITH_CONSUME] options 'progressConsumer' and 'consume' cannot both be set: the durable consumer of "
    "a query that consumes shows its progress already; its name is the option 'consumer'"
)
CONSUMER_NEEDS_CONSUME = Condition(
    "[NATS_CONSUMER_NEEDS_CONSUME] option 'consumer' needs the option 'consume' to be true; without it there is no "
    "consumer"
)
PATTERN_CANNOT_CREATE = Condition(
    "[NATS_PATTERN_CANNOT_CREATE] options 'streamPattern' and 'createStream' contradict each other: a pattern does not "
    "say what to create; name the stream in the option 'stream'"
)
PATTERN_CANNOT_CONSUME = Condition(
    "[NATS_PATTERN_CANNOT_CONSUME] options 'streamPattern' and 'consume' contradict each other: no durable consumer of "
    "the query would hold messages that a stream receives before the query finds it; name the streams in the option "
    "'stream'"
)
NOTHING_AFTER_LATEST = Condition(
    "[NATS_NOTHING_AFTER_LATEST] option 'startingOffsets' is latest, so a batch has nothing to read; use earliest"
)
NOTHING_BEFORE_EARLIEST = Condition(
    "[NATS_NOTHING_BEFORE_EARLIEST] option 'endingOffsets' is earliest, so a batch has nothing to read; use latest"
)
ONE_STREAM_TO_WRITE = Condition(
    "[NATS_ONE_STREAM_TO_WRITE] option 'stream' names {streams} streams; a query writes to one"
)
ONE_SUBJECT_TO_WRITE = Condition(
    "[NATS_ONE_SUBJECT_TO_WRITE] option 'subject' is {subject!r}; for writing it must be one subject, but it "
    "{violation}"
)
ONE_STREAM_TO_CREATE = Condition(
    "[NATS_ONE_STREAM_TO_CREATE] option 'createStream' creates one stream, but 'stream' names {streams}"
)
NO_SUBJECTS_TO_CREATE = Condition(
    "[NATS_NO_SUBJECTS_TO_CREATE] option 'createStream' is true, but the subjects of the stream are unknown: set the "
    'option \'subject\', or give the stream\'s configuration, such as {{"subjects": ["orders.>"]}}'
)
OTHER_STREAM_TO_CREATE = Condition(
    "[NATS_OTHER_STREAM_TO_CREATE] option 'createStream' has the name {name!r}, but 'stream' is {stream!r}"
)
ENDS_BEFORE_OFFSET = Condition(
    "[NATS_ENDS_BEFORE_OFFSET] option 'endingOffsets' has {end} for the stream {stream!r}, which is below its {start} "
    "in 'startingOffsets'; nothing can be read, so swap or correct them"
)
ENDS_BEFORE_TIME = Condition(
    "[NATS_ENDS_BEFORE_TIME] option 'endingTimestamp' is {end}, which is before 'startingTimestamp', {start}; nothing "
    "can be read, so swap or correct them"
)
PUSHDOWN_OF_OTHER_SCANS = Condition(
    "[NATS_PUSHDOWN_OF_OTHER_SCANS] option '{option}' is refused: Spark lets every scan of a DataFrame or view use "
    "what was pushed down for the last one, so rows would be missing; say what to read in 'subject', "
    "'startingOffsets', 'endingOffsets' or 'limit', and leave '{option}' out"
)
