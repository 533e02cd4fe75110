"""Reading core NATS.

=====================  ======================================================================
:mod:`.read`           the batch and the streaming reader, and its offsets: messages counted by their receiver
:mod:`.slices`         what was received cut into partitions
:mod:`.spool`          micro-batches kept until they are processed
:mod:`.receiver`       what listens while the query runs
:mod:`.backlog`        what has been received and not been read yet
=====================  ======================================================================
"""
