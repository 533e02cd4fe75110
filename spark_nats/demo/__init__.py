"""``spark-nats demo``: orders through NATS, Spark and NATS again, then proof that what arrived is what was sent.

Order events are made up from a seed and published to one stream. A streaming query reads them, keeps the revenue of
each region and minute, and writes every change to a second stream. Both streams are then read back: the first
is compared with a copy of the orders that never went through NATS, the second with sums that Spark did not compute.
"""
