"""The connector as the scripts call it: `ours read bucket=B`, `ours write stream=S < rows`, `ours stream S s.>`; and
`ours consumers S`: what others read a stream with.

Rows are printed and read as JSON, one a line. What differs from run to run is left out: times, and columns without a
value.
"""

from __future__ import annotations

import base64
import json
import pickle
import re
import sys
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tests.integration.support import batch_reader, read_partitions, source, write
from tests.nats_py import NatsPy

_TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "BIGINT": LongType(),
    "BOOLEAN": BooleanType(),
    "TIMESTAMP_LTZ": TimestampType(),
    "MAP<STRING, ARRAY<STRING>>": MapType(StringType(), ArrayType(StringType())),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
    "STRUCT<bucket: STRING, name: STRING>": StructType().add("bucket", StringType()).add("name", StringType()),
}
_LEFT_OUT = {"timestamp", "created", "modified", "stream", "bucket"}
_LONGEST = 50_000
_CONSUMER = ("durable_name", "deliver_group", "deliver_policy", "ack_policy", "ack_wait", "max_deliver")
_ROW = {
    "subject": pa.string(),
    "payload": pa.string(),
    "headers": pa.map_(pa.string(), pa.list_(pa.string())),
    "msg_id": pa.string(),
    "key": pa.string(),
    "value": pa.string(),
    "operation": pa.string(),
    "name": pa.string(),
    "content": pa.string(),
    "increment": pa.string(),
}


def columns_of(ddl: str) -> StructType:
    """The columns that a query has when nothing is chosen; Spark's own parser of such texts would need a JVM."""
    columns = StructType()
    for name, text in re.findall(r"(\w+) ((?:[^,<]|<(?:[^<>]|<[^<>]*>)*>)+)", ddl):
        columns.add(name, _TYPES[text.strip()])
    return columns


def shown(value: Any) -> Any:
    """A value as JSON has it: bytes that are no text in base64, of many their number."""
    if isinstance(value, bytes):
        if len(value) > _LONGEST:
            return f"{len(value)} bytes"
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(value).decode()
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: each[0] if isinstance(each, list) and len(each) == 1 else each for name, each in value}
    return value


def read(url: str, options: dict[str, str]) -> None:
    columns = columns_of(source(url, **options).schema())
    if "objectStore" in options:
        columns.add("content", BinaryType())
    reader = batch_reader(url, columns, **options)
    for row in read_partitions(pickle.dumps(reader), reader.partitions()):
        kept = {name: shown(value) for name, value in row.items() if name not in _LEFT_OUT}
        some = {name: value for name, value in kept.items() if value not in (None, [], {})}
        if "headers" in some:  # in their order by name, since that of a map of Go is another each time
            some["headers"] = dict(sorted(some["headers"].items()))
        print(json.dumps(some, ensure_ascii=False))


def write_rows(url: str, options: dict[str, str]) -> None:
    rows = [json.loads(line) for line in sys.stdin if line.strip()]
    for row in rows:
        if "headers" in row:
            row["headers"] = [(k, v if isinstance(v, list) else [v]) for k, v in row["headers"].items()]
    names = [name for name in _ROW if any(name in row for row in rows)]
    table = pa.table({name: pa.array([row.get(name) for row in rows], _ROW[name]) for name in names})
    write(url, table, **options)
    print(f"wrote {len(rows)}")


def main() -> None:
    url, what, *arguments = sys.argv[1:]
    if what == "stream":
        name, *arguments = arguments
        fields = dict(each.split("=", 1) for each in arguments if "=" in each)
        with NatsPy(url) as client:
            subjects = [each for each in arguments if "=" not in each]
            client.create_stream(name, subjects, **{field: json.loads(value) for field, value in fields.items()})
    elif what == "config":
        name, *fields = arguments
        with NatsPy(url) as client:
            config = client.stream_info(name)["config"]
        print(name, json.dumps({field: config.get(field) for field in fields} if fields else config, sort_keys=True))
    elif what == "consumers":
        with NatsPy(url) as client:
            listed = client.api(f"CONSUMER.LIST.{arguments[0]}")["consumers"] or []
        for info in sorted(listed, key=lambda each: each["config"].get("durable_name", "")):
            made = {field: info["config"][field] for field in _CONSUMER if field in info["config"]}
            made |= {"acknowledged": info["ack_floor"]["stream_seq"], "waiting": info["num_ack_pending"]}
            print(json.dumps(made))
        print(f"consumers: {len(listed)}")
    else:
        options = dict(each.split("=", 1) for each in arguments)
        {"read": read, "write": write_rows}[what](url, options)


if __name__ == "__main__":
    main()
