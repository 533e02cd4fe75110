"""Reading, as Spark sees it: offsets, partitions, rows.

=====================  ======================================================================
:mod:`.schema`         the columns of a row
:mod:`.columns`        how they are built from messages
:mod:`.partitions`     what every partition brings to its task
:mod:`.pace`           how much a micro-batch has, and whether it waits for more
:mod:`.stream`         streams: exact, replayable, parallel
:mod:`.bucket`         KV buckets, in batches
:mod:`.core`           core NATS: what is published while it is listened to
=====================  ======================================================================
"""
