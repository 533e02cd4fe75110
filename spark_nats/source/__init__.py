"""Reading, as Spark sees it: offsets, partitions, rows.

=====================  ======================================================================
:mod:`.columns`        the columns of a row, and how they are built from messages
:mod:`.offsets`        offsets, and what the server says about them
:mod:`.planning`       ranges of sequences cut into partitions: arithmetic only
:mod:`.readers`        the batch and the streaming reader of streams
:mod:`.pushdown`       filters that narrow what a batch reads
:mod:`.core`           the batch and the streaming reader of core NATS
:mod:`.slices`         what was received of core NATS cut into partitions
:mod:`.spool`          micro-batches of core NATS kept until they are processed
=====================  ======================================================================
"""
