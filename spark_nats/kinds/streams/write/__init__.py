"""Writing rows: the driver and the tasks check them, and the tasks publish them.

======================  ======================================================================
:mod:`.sink`            the target: a stream, core NATS, or what differs from them; the columns that rows may have
:mod:`.columns`         rows encoded as messages; a whole batch is checked before it is sent
:mod:`.message_ids`     message ids made from the content of rows
:mod:`.checks`          checks on the driver, before the tasks and after them
:mod:`.notes`           the notes of tasks that begin, in the state bucket, and what other attempts have stored
:mod:`.task_start`      how a task begins: a pure function of known facts
:mod:`.replay`          how rows are kept from being stored twice: never, in the window, exactly
:mod:`.partitions`      writing one partition: each row by itself, unless an option names another row writer
:mod:`.tasks`           what the driver and the tasks exchange
:mod:`.metrics_channel` counts of a commit, for the program that started the query
:mod:`.writers`         the batch and the streaming writer
======================  ======================================================================
"""
