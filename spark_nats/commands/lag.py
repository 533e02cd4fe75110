"""``spark-nats lag``: the lag of a checkpoint's query, whether the query runs or not, as a table or for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_nats import clock
from spark_nats.commands import LOOK_AGAIN
from spark_nats.commands.checkpoints import Checkpoint, read_checkpoint
from spark_nats.commands.console import Console, rate_shown, seconds_shown, time_shown
from spark_nats.lag import QueryLag, StreamLag, compute_or_ask_lag, with_growth
from spark_nats.metrics import ASKED, BATCH, BATCH_ENDED, OF_STREAMS, QUERY, Measure, labels_of
from spark_nats.options.settings import Settings


class Found(NamedTuple):
    """A checkpoint and the lag of its query."""

    checkpoint: Checkpoint
    lag: QueryLag


def wait_and_ask_lag(location: str, settings: Settings) -> Found:
    """Read a checkpoint, and request the state of its query's streams twice, :data:`.LOOK_AGAIN` seconds apart.

    Args:
        location: where the checkpoint is, see :func:`~spark_nats.commands.checkpoints.read_checkpoint`.
        settings: how to connect, and the query's options that :func:`~spark_nats.lag.progress` needs.

    Raises:
        NatsError: the checkpoint cannot be read, its query reads no streams of NATS, or a request failed.
    """
    checkpoint = read_checkpoint(location)
    planned = checkpoint.next_planned.timestamp() if checkpoint.next_planned else 0.0
    where = (checkpoint.query, checkpoint.batch, checkpoint.samples, settings, planned)
    before = compute_or_ask_lag(*where)
    clock.sleep(LOOK_AGAIN)
    return Found(checkpoint, with_growth(before, compute_or_ask_lag(*where)))


def print_lag(found: Found, console: Console) -> None:
    """Print the lag of a query."""
    checkpoint, lag = found
    now = lag.at.timestamp()
    last = under_way = "none"
    if lag.ended:
        last = f"micro-batch {lag.batch}, {seconds_shown(now - lag.ended.timestamp())} ago"
    if since := checkpoint.next_planned:
        under_way = f"micro-batch {lag.batch + 1}, since {seconds_shown(now - since.timestamp())}"
    console.print_table((), [("query", lag.query), ("last ended", last), ("under way", under_way)])
    console.print_line()
    console.print_table(
        ("stream", "read up to", "last", "behind", "oldest unread", "reads", "grows by", "caught up in"),
        [_table_row(stream, now) for stream in lag.streams],
        numbers=("read up to", "last", "behind", "reads", "grows by", "caught up in"),
    )
    if lag.ended and lag.is_silent and lag.behind:
        ended = time_shown(lag.ended)
        console.print_line(
            f"no micro-batch has ended since {ended}, so it is not known how fast the query reads; does it run?"
        )
    if left := {name for _, name in checkpoint.samples[-1].streams} - {stream.stream for stream in lag.streams}:
        console.print_line(f"left out, because --stream does not name them: {', '.join(sorted(left))}")
    for stream in lag.streams:
        if stream.problem:
            hint = "; if the query does not read it any more, name the streams that it reads (--stream)"
            console.print_line(f"{stream.stream}: {stream.problem}{hint if len(lag.streams) > 1 else ''}")
        if stream.oldest and stream.max_age and stream.nears_max_age(lag.at):
            age, most = seconds_shown(now - stream.oldest.timestamp()), seconds_shown(stream.max_age)
            console.print_line(
                f"warning: {stream.stream}: the oldest unread message is {age} old, and the stream removes messages "
                f"after {most} (max_age)"
            )


def _table_row(lag: StreamLag, now: float) -> tuple[str, ...]:
    oldest = f"{time_shown(lag.oldest)}, {seconds_shown(now - lag.oldest.timestamp())} ago" if lag.oldest else ""
    return (
        lag.stream if isinstance(lag.source, int) else f"{lag.stream} ({lag.source})",
        f"{lag.next - 1:,}",
        f"{lag.end - 1:,}",
        f"{lag.behind:,}",
        oldest,
        rate_shown(lag.rate) if lag.rate is not None else "?",
        rate_shown(lag.arriving) if lag.arriving is not None else "?",
        "" if not lag.behind else seconds_shown(lag.catch_up) if lag.catch_up is not None else "?",
    )


_ESCAPES = {"\\": r"\\", "\n": r"\n"}
_IN_HELP = str.maketrans(_ESCAPES)
_IN_LABELS = str.maketrans({**_ESCAPES, '"': r"\""})


def prometheus_text(found: Found) -> str:
    """Return the lag of a query as gauges in Prometheus's text format 0.0.4; a value that is None has no line."""
    lag = found.lag
    query = {QUERY: lag.query}
    lines = [
        *_gauge_lines(BATCH, [(query, lag.batch)]),
        *_gauge_lines(BATCH_ENDED, [(query, lag.ended.timestamp() if lag.ended else None)]),
        *_gauge_lines(ASKED, [(query, lag.at.timestamp())]),
    ]
    for measure, value_of in OF_STREAMS:
        lines += _gauge_lines(measure, ((labels_of(lag.query, each), value_of(each)) for each in lag.streams))
    return "".join(f"{line}\n" for line in lines)


def _gauge_lines(measure: Measure, samples: Iterable[tuple[Mapping[str, str], float | None]]) -> list[str]:
    name = measure.prometheus_name
    lines = [f"{name}{_labels_text(labels)} {value!r}" for labels, value in samples if value is not None]
    if not lines:
        return []
    return [f"# HELP {name} {measure.meaning.translate(_IN_HELP)}", f"# TYPE {name} gauge", *lines]


def _labels_text(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_IN_LABELS)}"' for name, value in labels.items()) + "}"
