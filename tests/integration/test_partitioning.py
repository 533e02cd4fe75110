"""partition() against the subject mappings of a real server, and against FNV-1a in plain Python."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_nats
from tests.integration.support import save
from tests.nats_py import NatsPy
from tests.servers import Server, ServerFactory

LETTERS = "abcXYZ019-_äßéñ日本語中αβγЖ💥🙂\u0301\u00a0"
MAPPED = {  # tokens of the subject after the first, the server's function, and ours
    "one": (1, "partition(2147483647,1)", (2147483647, "first")),
    "two": (2, "partition(8,1,2)", (8, "first", "second")),
    "turned": (2, "partition(8,2,1)", (8, "second", "first")),
    "again": (2, "partition(1000,2,1,2)", (1000, "second", "first", "second")),
    "lone": (1, "partition(1,1)", (1, "first")),
}


def fnv_1a(data: bytes) -> int:
    hashed = 2166136261
    for byte in data:
        hashed = ((hashed ^ byte) * 16777619) % 2**32
    return hashed


@pytest.fixture
def tokens() -> list[tuple[str, str]]:
    """Ten thousand pairs of tokens."""
    dice = random.Random(53)

    def token() -> str:
        return "".join(dice.choice(LETTERS) for _ in range(dice.randint(1, 24)))

    return [(token(), token()) for _ in range(10_000)]


def test_ten_thousand_subjects_have_the_partitions_that_a_server_maps_them_to(
    spark: SparkSession, server_factory: ServerFactory, tokens: list[tuple[str, str]]
) -> None:
    mappings = ", ".join(
        f'"{name}{".*" * count}": "mapped.{{{{{function}}}}}"' for name, (count, function, _) in MAPPED.items()
    )
    kinds = list(MAPPED)
    subjects = []
    for number, pair in enumerate(tokens):
        name = kinds[number % len(kinds)]
        subjects.append(".".join((name, *pair[: MAPPED[name][0]])))
    server = server_factory(f"mappings = {{ {mappings} }}")
    with NatsPy(server.url) as client, client.collect("mapped.>") as collected:
        client.publish_many((subject, b"%d" % number) for number, subject in enumerate(subjects))
        arrived = {int(m.payload): int(m.subject.split(".")[1]) for m in collected.wait(len(tokens))}
    rows = spark.createDataFrame([(i, *pair) for i, pair in enumerate(tokens)], "i INT, first STRING, second STRING")
    ours = rows.select("i", *(spark_nats.partition(*ours).alias(name) for name, (_, _, ours) in MAPPED.items()))
    computed = {row.i: row[kinds[row.i % len(kinds)]] for row in ours.collect()}
    assert computed == arrived


def test_any_text_has_the_partition_of_its_bytes_and_null_has_none(spark: SparkSession) -> None:
    texts = ["", "a", "x.y", "a b", "\x00", "äö日本💥", "foobar" * 50]
    rows = spark.createDataFrame([(i, text) for i, text in enumerate([*texts, None])], "i INT, text STRING")
    found = rows.select("i", spark_nats.partition(97, "text"), spark_nats.partition(97, F.col("i"), "text"))
    expected = [(i, fnv_1a(text.encode()) % 97, fnv_1a(f"{i}{text}".encode()) % 97) for i, text in enumerate(texts)]
    assert sorted(map(tuple, found.collect())) == [*expected, (len(texts), None, None)]


def test_rows_that_are_written_lie_beside_what_a_server_maps(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    keys = [f"kunde-ä{i}" for i in range(100)]
    transform = {"src": f"{unique}.*", "dest": f"{unique}.{{{{partition(8,1)}}}}.{{{{wildcard(1)}}}}"}
    nats_py.create_stream(f"{unique}_MAPPED", [f"{unique}.*"], subject_transform=transform)
    nats_py.publish_acked([(f"{unique}.{key}", b"") for key in keys])
    nats_py.create_stream(f"{unique}_WRITTEN", [f"{unique}.*.*"])
    rows = spark.createDataFrame([(key,) for key in keys], "key STRING").select(
        F.format_string(f"{unique}.%d.%s", spark_nats.partition(8, "key"), "key").alias("subject"),
        F.lit("x").alias("payload"),
    )
    save(rows, nats_server, stream=f"{unique}_WRITTEN")
    mapped, written = ({m.subject for m in nats_py.read_stream(f"{unique}_{of}")} for of in ("MAPPED", "WRITTEN"))
    assert written == mapped
    assert len(mapped) == len(keys)
