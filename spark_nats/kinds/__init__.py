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

KINDS = {
    "core": "core:CORE",
    "streams": "streams:STREAMS",
    "buckets": "buckets:BUCKETS",
    "objects": "objects:OBJECTS",
    "tables": "tables:TABLES",
}
"""Where each kind is, as :func:`.kind.import_by_name` takes it."""
