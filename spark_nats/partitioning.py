"""The number that a server's subject mapping ``{{partition(n, …)}}`` puts into a subject, as a column of Spark."""

from __future__ import annotations

from pyspark.sql import Column, functions

from spark_nats.conditions.others import PARTITION_OF_NOTHING, PARTITIONS_INVALID
from spark_nats.errors import OptionError

_MOST = 2**31 - 1  # the server keeps the number in 32 bits, and so does Spark's INT

# FNV-1a with 32 bits
_BASIS = 2166136261
_PRIME = 16777619
_MASK = 2**32 - 1


def partition(n: int, *tokens: Column | str) -> Column:
    """Return the partition of each row, an INT from 0 to ``n`` - 1, as servers compute it in ``{{partition(n, …)}}``.

    Rows with equal tokens have the same partition, here and in the subject mappings and the ``subject_transform`` of
    servers, from 2.10 to 2.15::

        orders.withColumn("subject", F.format_string("orders.%d.%s", spark_nats.partition(8, "customer"), "customer"))

    puts into the subject what a server does with
    ``{"src": "orders.*", "dest": "orders.{{partition(8,1)}}.{{wildcard(1)}}"}``. Several columns are the tokens
    ``{{partition(n,1,2)}}`` in this order; as in servers, ``ab`` and ``c`` are in the same partition as ``a`` and
    ``bc``. A column of whole subjects is ``{{partition(n)}}``, which servers have since 2.12. Spark computes it without
    Python, by expressions that each PySpark has, classic or Connect.

    Nothing is checked in rows: the partition of a row in which a column is null is null, and a text that cannot be a
    token, because it is empty or has dots, wildcards or white space, has a partition like any other. Writing refuses
    such a subject, but for the dot, which makes two tokens of it.

    Args:
        n: how many partitions there are; at least 1.
        tokens: columns or their names; other types than STRING and BINARY are cast to STRING.

    Raises:
        OptionError: ``n`` is not a whole number from 1 to 2147483647, or there is no column.
    """
    if type(n) is not int or not 1 <= n <= _MOST:
        raise OptionError(PARTITIONS_INVALID(value=repr(n), most=_MOST).with_code)
    if not tokens:
        raise OptionError(PARTITION_OF_NOTHING().with_code)
    texts = [(functions.col(token) if isinstance(token, str) else token).cast("string") for token in tokens]
    # A character for each byte, whose code point is the byte.
    characters = functions.decode(functions.concat(*texts).cast("binary"), "ISO-8859-1")
    hashed = functions.aggregate(
        functions.split(characters, ""),
        functions.lit(_BASIS).cast("long"),
        lambda so_far, character: (so_far.bitwiseXOR(functions.ascii(character)) * _PRIME).bitwiseAND(_MASK),
    )
    # Of an empty text, split makes one empty character.
    return (functions.when(characters == "", functions.lit(_BASIS).cast("long")).otherwise(hashed) % n).cast("int")
