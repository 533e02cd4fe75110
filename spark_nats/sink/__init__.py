"""Writing, as Spark sees it: rows checked and published.

=====================  ======================================================================
:mod:`.columns`        the columns of a row, and the checks of a whole batch before it is sent
:mod:`.message_ids`    message ids made of what rows say
:mod:`.settling`       what a task has stored already when it is run again
:mod:`.partitions`     writing one partition
:mod:`.tasks`          what the driver and the tasks tell each other
:mod:`.writers`        the batch and the streaming writer
=====================  ======================================================================
"""
