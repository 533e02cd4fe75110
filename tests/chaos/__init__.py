"""A streaming query that has to survive faults: ``make chaos ARGS="--seed 7 --faults 20"``.

A publisher writes to the stream IN of a cluster of three servers, a query copies it to the stream OUT, and one fault
after another hits servers, connections, Python workers, executors or the driver. In the end every message of IN must
stand in OUT exactly once and in order.
"""
