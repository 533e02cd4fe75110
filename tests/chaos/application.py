"""The Spark driver that faults hit: runs the query, and starts it again when it ends by itself.

It is given one argument, `Settings` as JSON. It writes what happens to standard output as lines of JSON and ends when
its standard input does; the line ``finish`` there has it process what there is and stop.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

# As Python prints our errors; Spark hands the text on, inside its own.
_OURS = re.compile(r"^spark_nats\.errors\.(\w+: .+)$", re.MULTILINE)
_JAVA = re.compile(r"\s+at |Driver stacktrace|JVM stacktrace|Caused by|\.\.\. \d+ more")
_POLL = 0.2
_PAUSE = 1.0  # seconds before a query that has ended is started again
_LOSS = "DataLossError: "
_ENOUGH = 3  # micro-batches with rows after which a query that goes on with what there is has found its place


@dataclass(frozen=True)
class Settings:
    """What the query does.

    Attributes:
        master: Spark's.
        options: of the source, as the connector takes them.
        target: options of the sink.
        columns: of the rows that are written.
        checkpoint: the directory.
        trigger: such as ``500 milliseconds``.
    """

    master: str
    options: dict[str, str]
    target: dict[str, str]
    columns: list[str]
    checkpoint: str
    trigger: str = "500 milliseconds"


def main() -> None:
    """Do what the argument says."""
    settings = Settings(**json.loads(sys.argv[1]))
    spark = (
        SparkSession.builder.master(settings.master)
        .appName("chaos")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.deploy.maxExecutorRetries", -1)  # executors are killed as often as a run likes
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    finishing = threading.Event()
    threading.Thread(target=_listen, args=(finishing,), daemon=True).start()
    lenient = False
    while True:
        try:
            if _run(_start(spark, settings, lenient), finishing, lenient):
                lenient = False
                continue
        except Exception as error:
            sentence = last_sentence(str(error))
            lenient = sentence.startswith(_LOSS)
            _say(ended=sentence)
            time.sleep(_PAUSE)
        else:
            _say(finished=True)
            break
    spark.stop()


def _start(spark: SparkSession, settings: Settings, lenient: bool) -> StreamingQuery:
    """Start the query; after a loss, as its error says, so that it goes on with what there is."""
    going_on = {"failOnDataLoss": "false"} if lenient else {}
    rows = spark.readStream.format("nats").options(**settings.options, **going_on).load()
    return (
        rows.selectExpr(settings.columns)
        .writeStream.format("nats")
        .options(**settings.target, checkpointLocation=settings.checkpoint, **going_on)
        .trigger(processingTime=settings.trigger)
        .start()
    )


def _run(query: StreamingQuery, finishing: threading.Event, lenient: bool) -> bool:
    """Wait until the query has finished; or, if it goes on after a loss, until it may be started as before.

    Returns:
        Whether it is to be started again. Raises what ended it before.
    """
    _say(started=str(query.id), lenient=lenient)
    while not finishing.is_set():
        if query.awaitTermination(_POLL):
            raise RuntimeError("the query has stopped without an error")
        if lenient and sum(progress.numInputRows > 0 for progress in query.recentProgress) >= _ENOUGH:
            query.stop()
            return True
    query.processAllAvailable()
    query.stop()
    return False


def _listen(finishing: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "finish":
            finishing.set()
    os._exit(0)  # and with it the JVM


def _say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def last_sentence(text: str) -> str:
    """The sentence of an error of Spark that says most: ours, or else the last one that is not of a Java stack."""
    ours = _OURS.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _JAVA.match(line)]
    return str((ours or lines or ["an error without a text"])[-1])


if __name__ == "__main__":
    main()
