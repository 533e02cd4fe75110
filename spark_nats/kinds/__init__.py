"""What a query can name, a folder for each kind of it.

===============  ==============================================================================
:mod:`.streams`  streams: exact, replayable, parallel
:mod:`.core`     core NATS: what is published while it is listened to
:mod:`.buckets`  KV buckets
:mod:`.objects`  object stores
:mod:`.tables`   what an account holds
:mod:`.foreach`  writes what Spark hands over row by row
===============  ==============================================================================
"""

from spark_nats.kinds.buckets import BUCKETS
from spark_nats.kinds.core import CORE
from spark_nats.kinds.objects import OBJECTS
from spark_nats.kinds.streams import STREAMS
from spark_nats.kinds.tables import TABLES

# A query is of the last kind that one of its options names, and about core NATS if there is none.
KINDS = (
    CORE,
    STREAMS,
    BUCKETS,
    OBJECTS,
    TABLES,
)
