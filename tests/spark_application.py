"""Runs scripts in one Spark application with executors in processes of their own; see `SparkApplication`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import traceback

from pyspark.sql import SparkSession


def end_with_standard_input() -> None:
    """End this process, and with it the JVM, when the process that started it closes its standard input or dies."""
    sys.stdin.read()
    spark.stop()
    os._exit(0)


spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", False)
    .config("spark.ui.showConsoleProgress", False)
    .config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
threading.Thread(target=end_with_standard_input, daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rw") as lines:

        def say(line: object) -> None:
            lines.write(f"{line}\n")
            lines.flush()

        script, *arguments = json.loads(lines.readline())
        names = {"spark": spark.newSession(), "arguments": arguments, "say": say, "hear": lines.readline}
        try:
            exec(compile(script, "<script>", "exec"), names)
            ended = ""
        except BaseException:
            ended = traceback.format_exc()
            for query in spark.streams.active + names["spark"].streams.active:
                query.stop()
        with contextlib.suppress(OSError):  # the test has ended before
            say(json.dumps(ended))
