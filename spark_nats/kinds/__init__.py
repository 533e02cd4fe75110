"""What a query can name, a folder for each kind of it.

===============  ==============================================================================
:mod:`.streams`  streams: exact, replayable, parallel
:mod:`.core`     core NATS: what is published while it is listened to
:mod:`.buckets`  KV buckets
:mod:`.objects`  object stores
:mod:`.tables`   what an account holds
===============  ==============================================================================
"""
