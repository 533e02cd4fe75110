"""The tables of docs/from-kafka.md, held against what this connector says of Kafka's options."""

import re

import pytest

from spark_nats.errors import OptionError
from spark_nats.kinds.queries import documented_options, parse_options
from tests.pages import ROOT

NAMED = re.compile(r"`([^`]+)`")
KNOWN = {each.option.name for each in documented_options().values()}


def rows() -> list[tuple[str, list[str]]]:
    """Each option of Kafka on the page, and the options that the page names instead."""
    page = (ROOT / "docs/from-kafka.md").read_text()
    tables = page.partition("## Options of the source")[2].partition("## Columns")[0]
    found = []
    for line in tables.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| ") and len(cells) > 1:
            kafkas = [name for name in NAMED.findall(cells[0]) if name[0].islower() and not name.startswith("spark.")]
            ours = [name for name in NAMED.findall(cells[1]) if name in KNOWN]
            found += [(name.replace("*", "some"), ours) for name in kafkas]
    return found


@pytest.mark.parametrize(("kafka", "ours"), [row for row in rows() if row[1] and row[0] not in KNOWN])
def test_an_option_of_kafka_that_is_left_in_names_what_the_page_names(kafka: str, ours: list[str]) -> None:
    with pytest.raises(OptionError, match=re.escape(f"unknown option '{kafka}'")) as raised:
        parse_options({"stream": "ORDERS", kafka: "x"})
    assert any(f"'{name}'" in str(raised.value) for name in ours), f"{raised.value}; the page names {ours}"


@pytest.mark.parametrize("kafka", [name for name, ours in rows() if not ours])
def test_an_option_of_kafka_without_a_counterpart_is_known_or_refused(kafka: str) -> None:
    if kafka not in KNOWN:
        with pytest.raises(OptionError, match="unknown option"):
            parse_options({"stream": "ORDERS", kafka: "x"})


def test_the_page_has_a_row_for_each_option_of_kafkas_source_and_sink() -> None:
    documented_by_spark = {
        *("assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "topic", "includeHeaders"),
        *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp"),
        *("endingOffsetsByTimestamp", "endingOffsets", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs"),
        *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"),
        *("maxTriggerDelay", "minPartitions", "groupIdPrefix", "kafka.group.id", "kafka.auto.offset.reset"),
        *("startingOffsetsByTimestampStrategy", "kafka.key.deserializer", "kafka.value.deserializer"),
        *("kafka.key.serializer", "kafka.value.serializer", "kafka.enable.auto.commit", "kafka.interceptor.classes"),
    }
    assert documented_by_spark - {name for name, _ in rows()} == set()
