"""Writing, as Spark sees it: rows checked and published.

======================  ======================================================================
:mod:`.sink`            what is written to: a stream or core NATS, and how others differ
:mod:`.schema`          which columns a DataFrame may have
:mod:`.columns`         the columns of a row, and the checks of a whole batch before it is sent
:mod:`.message_ids`     message ids made of what rows say
:mod:`.checks`          what the driver looks at before there are tasks, and behind them
:mod:`.notes`           what tasks note when they begin
:mod:`.task_start`      how a task begins: a function of what is known then
:mod:`.replay`          what a task has stored already when it is run again
:mod:`.dead_letters`    rows that cannot be sent, set aside
:mod:`.partitions`      writing one partition
:mod:`.tasks`           what the driver and the tasks tell each other
:mod:`.metrics_channel` the sum of what tasks did, for the program that started the query
:mod:`.writers`         the batch and the streaming writer
======================  ======================================================================
"""
