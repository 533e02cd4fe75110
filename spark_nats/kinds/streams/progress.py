"""The option ``progressConsumer``: durable consumers show how far a query has come."""

from collections.abc import Collection
from typing import Any, Self

from spark_nats.errors import OptionError
from spark_nats.kinds.streams.conditions import PROGRESS_WITH_CONSUME
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.options import values
from spark_nats.options.option import option
from spark_nats.options.query import Partitions


class ShownReadOptions(ReadOptions, section=Partitions.section):
    """Which messages of streams to read, and how; durable consumers may show the progress."""

    progress_consumer: str | None = option(
        values.read_name,
        "streaming: name of a durable consumer on each stream that shows how far the query is, for `nats consumer "
        "report` and for dashboards; the checkpoint is what counts. Needs nats-server 2.14",
    )

    def check_and_make_query(self, given: Collection[str]) -> Self:
        """Return the checked options, see :meth:`.ReadOptions.check_and_make_query`."""
        if self.progress_consumer and self.consume:
            raise OptionError(PROGRESS_WITH_CONSUME())
        return super().check_and_make_query(given)


def stream_reader(options: ShownReadOptions, schema: Any) -> Any:
    """Return the streaming reader of streams."""
    from spark_nats.jetstream.consuming.progress import ProgressConsumers
    from spark_nats.kinds.streams.read.readers import NatsStreamReader
    from spark_nats.kinds.streams.read.traits import Traits

    if options.progress_consumer is None:
        return NatsStreamReader(options, schema)
    shown = ProgressConsumers(options.progress_consumer, options.filters)
    traits = Traits(on_look=shown.create_or_take_over, on_progress=shown.move_consumer_or_log)
    return NatsStreamReader(options, schema, traits)
