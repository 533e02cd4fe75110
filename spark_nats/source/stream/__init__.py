"""Reading streams.

=====================  ======================================================================
:mod:`.readers`        the batch and the streaming reader
:mod:`.offsets`        offsets, and what the server says about them
:mod:`.planning`       ranges of sequences cut into partitions: arithmetic only
:mod:`.pushdown`       filters that narrow what a batch reads
=====================  ======================================================================
"""
