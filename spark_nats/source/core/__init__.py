"""Reading core NATS.

=====================  ======================================================================
:mod:`.readers`        the batch and the streaming reader
:mod:`.offsets`        offsets: messages counted by the process that received them
:mod:`.slices`         what was received cut into partitions
:mod:`.spool`          micro-batches kept until they are processed
=====================  ======================================================================
"""
