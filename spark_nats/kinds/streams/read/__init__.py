"""Reading streams.

=====================  ======================================================================
:mod:`.readers`        the batch and the streaming reader
:mod:`.offsets`        the steps of a streaming query, one for each call of Spark's
:mod:`.bounds`         where queries begin, and what a batch reads
:mod:`.looks`          looks at all streams of a query at once
:mod:`.advance`        how a query advances, and how much it reads: a decision from facts
:mod:`.losses`         descriptions of lost messages
:mod:`.positions`      offsets as values and as JSON, without PySpark
:mod:`.idling`         how an idle query waits for new messages
:mod:`.row_warnings`   warnings about what readers notice and do not act on
:mod:`.pace`           the size of micro-batches, and whether they wait for more
:mod:`.schema`         the columns of a row
:mod:`.columns`        building the columns from messages
:mod:`.traits`         the differences of kinds that are read as streams
:mod:`.planning`       cutting ranges of sequences into partitions: arithmetic only
=====================  ======================================================================
"""
