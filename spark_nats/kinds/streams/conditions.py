"""Errors in the options of queries of streams."""

from spark_nats.conditions import Condition, set_codes

OPTION_FOR_CORE = Condition("option '{option}' is for {doing} core NATS, and contradicts the option 'stream'")
OPTION_NEEDS_STREAM = Condition("option '{option}' needs the option 'stream'; without it {otherwise}")
PROGRESS_WITH_CONSUME = Condition(
    "options 'progressConsumer' and 'consume' cannot both be set: the durable consumer of a query that consumes shows "
    "its progress already; its name is the option 'consumer'"
)
CONSUMER_NEEDS_CONSUME = Condition(
    "option 'consumer' needs the option 'consume' to be true; without it there is no consumer"
)
PATTERN_CANNOT_CREATE = Condition(
    "options 'streamPattern' and 'createStream' contradict each other: a pattern does not say what to create; name the "
    "stream in the option 'stream'"
)
PATTERN_CANNOT_CONSUME = Condition(
    "options 'streamPattern' and 'consume' contradict each other: no durable consumer of the query would hold messages "
    "that a stream receives before the query finds it; name the streams in the option 'stream'"
)
NOTHING_AFTER_LATEST = Condition("option 'startingOffsets' is latest, so a batch has nothing to read; use earliest")
NOTHING_BEFORE_EARLIEST = Condition("option 'endingOffsets' is earliest, so a batch has nothing to read; use latest")
ONE_SUBJECT_TO_WRITE = Condition(
    "option 'subject' is {subject!r}; for writing it must be one subject, but it {violation}"
)
ONE_STREAM_TO_CREATE = Condition("option 'createStream' creates one stream, but 'stream' names {streams}")
NO_SUBJECTS_TO_CREATE = Condition(
    "option 'createStream' is true, but the subjects of the stream are unknown: set the option 'subject', or give the "
    'stream\'s configuration, such as {{"subjects": ["orders.>"]}}'
)
OTHER_STREAM_TO_CREATE = Condition("option 'createStream' has the name {name!r}, but 'stream' is {stream!r}")
ENDS_BEFORE_OFFSET = Condition(
    "option 'endingOffsets' has {end} for the stream {stream!r}, which is below its {start} in 'startingOffsets'; "
    "nothing can be read, so swap or correct them"
)
ENDS_BEFORE_TIME = Condition(
    "option 'endingTimestamp' is {end}, which is before 'startingTimestamp', {start}; nothing can be read, so swap or "
    "correct them"
)
PUSHDOWN_OF_OTHER_SCANS = Condition(
    "option '{option}' is refused: Spark lets every scan of a DataFrame or view use what was pushed down for the last "
    "one, so rows would be missing; say what to read in 'subject', 'startingOffsets', 'endingOffsets' or 'limit', and "
    "leave '{option}' out"
)

set_codes(globals())
