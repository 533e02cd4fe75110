"""What partition() refuses before Spark runs."""

import pytest

import spark_nats
from spark_nats.errors import OptionError


@pytest.mark.parametrize("n", [0, -1, 2**31, 1.5, "8", True, None])
def test_a_number_of_partitions_that_no_server_has_is_refused(n):
    with pytest.raises(OptionError, match="NATS_PARTITIONS_INVALID.*use a whole number from 1 to 2147483647"):
        spark_nats.partition(n, "customer")


def test_a_partition_of_no_column_is_refused():
    with pytest.raises(OptionError, match="NATS_PARTITION_OF_NOTHING"):
        spark_nats.partition(8)
