"""The benchmarks: ``python -m benchmarks --help``.

=====================  ======================================================================
:mod:`.codec`          wire bytes to columns and back, without a network
:mod:`.client`         streams and subjects to Arrow and back, without Spark
:mod:`.spark`          the data source inside Spark
:mod:`.startup`        what starting costs before the first row, and what is imported
:mod:`.kafka`          Spark's connector for Kafka doing the same
:mod:`.cost`           CPU time and memory per million messages
:mod:`.targets`        what the figures must reach
:mod:`.measure`        rounds, medians, ratios, tables
:mod:`.environment`    the machine, the versions and the server that the figures belong to
:mod:`.data`           the messages that everybody handles
:mod:`.paths`          what we ourselves are measured at, each path as one function
:mod:`.raw`            sockets without a client: the server's own limit
:mod:`.peers`          the other clients, and Kafka
:mod:`.trivial`        a data source that does nothing, to compare with
=====================  ======================================================================
"""
