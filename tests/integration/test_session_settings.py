"""Settings of a Spark session that change what a type or a literal means change nothing that is read or written."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.support import collecting, error_of, nats, numbers_of, save
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

SETTINGS: dict[str, dict[str, Any]] = {
    "times without a zone": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "another zone": {"spark.sql.session.timeZone": "Asia/Kolkata"},
    "names by their case": {"spark.sql.caseSensitive": True},
    "no ANSI": {"spark.sql.ansi.enabled": False},
}


@pytest.fixture(params=SETTINGS)
def session(request: pytest.FixtureRequest, spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    for name, value in SETTINGS[request.param].items():
        session.conf.set(name, value)
    return session


def seconds(frame: DataFrame) -> list[int]:
    """When messages were stored, whatever the session's zone is."""
    return [row[0] for row in frame.selectExpr("unix_seconds(timestamp) AS s").collect()]


@pytest.mark.long("spark_nats/kinds/*")
def test_all_that_can_be_read_is_read_as_ever(
    session: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked((f"{unique}.a", b"%d" % i) for i in range(1, 4))
    bucket = nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"], allow_rollup_hdrs=True)
    nats_py.publish_acked([(f"$KV.{unique}.k", b"7")])
    stored = [message.timestamp for message in nats_py.read_stream(unique) if message.timestamp]

    frame = nats(session.read, nats_server, stream=unique).load()
    assert numbers_of(frame.collect()) == [1, 2, 3]
    assert seconds(frame) == [int(time.timestamp()) for time in stored]
    chosen = nats(session.read, nats_server, stream=unique).schema("sequence BIGINT, timestamp TIMESTAMP_LTZ").load()
    assert seconds(chosen) == seconds(frame)

    session.sql(f"CREATE TEMPORARY VIEW {unique} USING nats OPTIONS (servers '{nats_server.url}', stream '{unique}')")
    assert session.sql(f"SELECT count(*), max(sequence) FROM {unique} WHERE timestamp IS NOT NULL").first() == (3, 3)

    streaming = nats(session.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    with collecting(streaming, f"{unique}_rows") as (_, rows):
        wait_until(lambda: len(rows()) == 3)

    assert bucket
    (entry,) = nats(session.read, nats_server, bucket=unique).load().select("key", "value", "created").collect()
    assert (entry["key"], bytes(entry["value"])) == ("k", b"7")
    tables = nats(session.read, nats_server, table="streams").load()
    assert tables.where(f"name = '{unique}' AND created IS NOT NULL").count() == 1


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("sequence BIGINT, timestamp TIMESTAMP_NTZ", "column 'timestamp' is TIMESTAMP_LTZ, not TIMESTAMP_NTZ"),
        ("sequence BIGINT, reply STRING NOT NULL", "column 'reply' is NOT NULL in the schema"),
        ("sequence BIGINT, payload BINARY, sequence BIGINT", "the schema names the column 'sequence' twice"),
    ],
)
def test_a_schema_that_would_be_believed_wrongly_is_refused(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, schema: str, said: str
) -> None:
    nats_py.create_stream(unique)
    text = error_of(lambda: nats(spark.read, nats_server, stream=unique).schema(schema).load().collect())
    assert text.startswith(f"SchemaError: {said}")


@pytest.mark.parametrize("kind", ["STRING COLLATE UTF8_LCASE", "STRING COLLATE UNICODE_CI", "CHAR(6)", "VARCHAR(40)"])
def test_text_is_written_whatever_its_collation_or_declared_length(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, kind: str
) -> None:
    nats_py.create_stream(unique)
    text = f"CAST('Strasse' AS {kind})"
    columns = f"CAST('{unique}.a' AS STRING) AS subject, {text} AS payload"
    if "COLLATE" in kind:
        columns = f"'{unique}.a' COLLATE UTF8_LCASE AS subject, {text} AS payload"
        columns += f", map('h' COLLATE UNICODE, array({text})) AS headers"
    save(spark.sql(f"SELECT {columns}"), nats_server, stream=unique)
    (stored,) = nats_py.read_stream(unique)
    assert (stored.subject, stored.payload.decode()) == (f"{unique}.a", "Strasse")
    assert stored.headers.get("h") == (["Strasse"] if "COLLATE" in kind else None)
