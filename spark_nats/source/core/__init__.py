"""Reading core NATS.

=====================  ======================================================================
:mod:`.readers`        the batch and the streaming reader, and its offsets: messages counted by their receiver
:mod:`.slices`         what was received cut into partitions
:mod:`.spool`          micro-batches kept until they are processed
=====================  ======================================================================
"""
