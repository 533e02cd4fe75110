"""What the command ``spark-nats`` does beside the demonstration.

=====================  ======================================================================
:mod:`.check`          ``spark-nats check``: what a login reaches and may do
:mod:`.permissions`    what reading and writing need, and which of it a user may
:mod:`.lag`            ``spark-nats lag``: how far the query of a checkpoint is behind
:mod:`.options`        ``spark-nats options``: the table of options
:mod:`.console`        facts and tables in a terminal, in a pipe, as JSON
=====================  ======================================================================
"""
