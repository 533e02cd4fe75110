"""The lag of a query in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_nats.commands.lag import Found
from spark_nats.metrics import ASKED, BATCH, BATCH_ENDED, OF_STREAMS, QUERY, Measure, labels_of

_ESCAPES = {"\\": r"\\", "\n": r"\n"}
_IN_HELP = str.maketrans(_ESCAPES)
_IN_LABELS = str.maketrans({**_ESCAPES, '"': r"\""})


def exposition(found: Found) -> str:
    """Return the lag of a query as gauges; a value that is None has no line."""
    checkpoint, lag = found
    query = {QUERY: lag.query}
    ended = checkpoint.samples[-1].ended if lag.batch >= 0 else None
    lines = [
        *_gauge(BATCH, [(query, lag.batch)]),
        *_gauge(BATCH_ENDED, [(query, ended)]),
        *_gauge(ASKED, [(query, lag.at.timestamp())]),
    ]
    for measure, value_of in OF_STREAMS:
        lines += _gauge(measure, ((labels_of(lag.query, each), value_of(each)) for each in lag.streams))
    return "".join(f"{line}\n" for line in lines)


def _gauge(measure: Measure, samples: Iterable[tuple[Mapping[str, str], float | None]]) -> list[str]:
    name = measure.in_prometheus
    lines = [f"{name}{_braced(labels)} {value!r}" for labels, value in samples if value is not None]
    if not lines:
        return []
    return [f"# HELP {name} {measure.meaning.translate(_IN_HELP)}", f"# TYPE {name} gauge", *lines]


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_IN_LABELS)}"' for name, value in labels.items()) + "}"
