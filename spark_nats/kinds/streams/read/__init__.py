"""Reading streams.

=====================  ======================================================================
:mod:`.readers`        the batch and the streaming reader
:mod:`.offsets`        what a streaming query asks and does for its offsets
:mod:`.bounds`         where queries begin, and what a batch reads
:mod:`.looks`          asking about all streams at once
:mod:`.facts`          what was found, as a value
:mod:`.advance`        how a query goes on: a function of facts
:mod:`.limits`         how much of what there is a micro-batch has
:mod:`.losses`         what is gone, in words
:mod:`.positions`      offsets as values and as JSON, without PySpark
:mod:`.idling`         how a query that has nothing to do waits
:mod:`.noticing`       what changes nothing, and is worth a warning
:mod:`.pace`           how much a micro-batch has, and whether it waits for more
:mod:`.schema`         the columns of a row
:mod:`.columns`        how they are built from messages
:mod:`.traits`         what differs between the kinds that are read as their streams
:mod:`.planning`       ranges of sequences cut into partitions: arithmetic only
=====================  ======================================================================
"""
