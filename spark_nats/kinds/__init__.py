"""The kinds of things that a query can name, a folder for each kind.

===============  ==============================================================================
:mod:`.streams`  streams: exact, replayable, parallel
:mod:`.core`     core NATS: what is published while a query listens
:mod:`.buckets`  KV buckets
:mod:`.objects`  object stores
:mod:`.tables`   the account's inventory
:mod:`.foreach`  the writer for ``foreach``, row by row
===============  ==============================================================================
"""

from spark_nats.kinds.buckets import BUCKETS
from spark_nats.kinds.core import CORE
from spark_nats.kinds.objects import OBJECTS
from spark_nats.kinds.streams import STREAMS
from spark_nats.kinds.tables import TABLES

# A query is of the last kind that one of its options names and that it can read or write; else of core NATS.
KINDS = (
    CORE,
    STREAMS,
    BUCKETS,
    OBJECTS,
    TABLES,
)
