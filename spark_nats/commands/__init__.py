"""The subcommands of ``spark-nats`` besides the demonstration."""

READ, CONSUME, PEEK, WRITE, EXACT, COMPARE, CREATE = "read", "consume", "peek", "write", "exact", "compare", "create"
"""Rows of the table of permissions in docs/login.md: reading a stream, a KV bucket or core NATS; reading a stream with
``consume`` or with ``peek``; writing; a streaming write to a stream with ``deduplicate=exact``; any write to a bucket
with ``expected_revision``; and ``createStream`` or ``createBucket``."""
ACTIVITIES = (READ, CONSUME, PEEK, WRITE, EXACT, COMPARE, CREATE)
STREAM_ACTIVITIES = (READ, CONSUME, PEEK, WRITE, EXACT, CREATE)
BUCKET_ACTIVITIES = (READ, WRITE, COMPARE, CREATE)
CORE_ACTIVITIES = (READ, WRITE)

LOOK_AGAIN = 1.0
"""Seconds between two requests for the state of streams; the difference shows how fast the streams grow."""
