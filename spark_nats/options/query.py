"""Options that several kinds of queries share, in groups; the dataclass of each kind inherits the groups it needs.

The fields of the last base class come first, in the documentation too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.conditions.queries import MORE_THAN_MOST, OFFSETS_FOR_OTHERS
from spark_nats.errors import OptionError
from spark_nats.options import values
from spark_nats.options.option import Group, option
from spark_nats.options.values import LATEST, Offsets
from spark_nats.protocol.api import API_PREFIX

WHAT = "What is read or written"
RANGE = "Where a read begins and ends"
EXACTNESS = "Exactly once, and lost messages"
FAIL_ON_DATA_LOSS = (
    "fail when messages that were to be read are lost, or the content of an object, or messages that "
    "`deduplicate=exact` needs to tell what is stored already; with `asOf`: when it is not known what the bucket held; "
    "`false`: log a warning and continue"
)

Q = TypeVar("Q", bound="Query")


class Query(Group):
    """The fields of every query.

    Attributes:
        sink: what returns the target of its rows, as ``module:name`` in ``kinds``; empty for a stream or core NATS.
    """

    sink: ClassVar[str] = ""
    connection: ConnectionOptions
    api_prefix: str  # subject prefix of the JetStream API
    retries: RetryOptions
    streaming: bool  # whether this is a streaming query

    def check_and_make_query(self, given: Collection[str]) -> Query:
        """Return this query as Spark will run it, with its options checked.

        Args:
            given: names of the options that were set.

        Raises:
            OptionError: options contradict each other.
        """
        return self

    def converted_to(self, other: type[Q], **others: Any) -> Q:
        """Return a query of another kind that does the work of this one, with all fields that both kinds have.

        ``others`` are further values, by field. The remaining options have their defaults.
        """
        mine: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)} | others
        known = {each.name: mine[each.name] for each in fields(other) if each.name in mine}
        rows: dict[str, Any] = {
            name: row.value({}, self.streaming) for name, row in other.options.items() if name not in known
        }
        return other(**known, **rows)


class RowQuery(Query):
    """A query that writes rows as messages."""

    @property
    def stream(self) -> str | None:
        """The target stream; None for core NATS."""
        return None

    @property
    def may_have_several_targets(self) -> bool:
        """Whether each row goes to that one of several streams which listens on its subject."""
        return False

    def is_target(self, stream: str) -> bool:
        """Tell whether rows may go to a stream."""
        return stream == self.stream

    @property
    def chosen_row_writers(self) -> list[str]:
        """What options name to store the rows of a task otherwise than each by itself; one of them at most may."""
        return []

    @property
    def dead_letter_stream(self) -> str | None:
        """The stream that gets the rows that cannot be sent; None where no stream does."""
        return None


class JetStreamQuery(Query, section="Connecting"):
    """The options of a query that uses JetStream."""

    api_prefix: str = option(
        values.read_subject_prefix,
        "subject prefix of the JetStream API, instead of `domain`",
        default=API_PREFIX,
        excludes=("domain",),
    )
    domain: str | None = option(values.read_name, "JetStream domain in which the streams are")


class DataLoss(Group, section=EXACTNESS):
    """The option for lost messages."""

    fail_on_data_loss: bool = option(values.read_boolean, FAIL_ON_DATA_LOSS, default="true")


class Partitions(Group, section="Micro-batches and partitions"):
    """The option for the number of partitions."""

    min_partitions: int = option(
        values.read_whole_number, "fewest partitions, if there is enough to read", default="1", excludes=("limit",)
    )


class Triggers(Group, section="Micro-batches and partitions"):
    """The options for the size of a micro-batch."""

    max_offsets: int | None = option(
        values.read_whole_number,
        "most sequences, or messages of core NATS, in one micro-batch; each stream with something new contributes at "
        "least one",
        name="maxOffsetsPerTrigger",
        streaming=True,
    )
    max_bytes: int | None = option(
        values.read_whole_number,
        "most bytes of subjects, headers and payloads in one micro-batch, which has at least one message of each "
        "stream; measured for the first 8,192 sequences of each stream, estimated from them for the others",
        name="maxBytesPerTrigger",
        streaming=True,
    )
    min_offsets: int | None = option(
        values.read_whole_number,
        "wait until there are this many new sequences, or messages of core NATS; the first micro-batch after a start "
        "does not wait, and with `Trigger.AvailableNow` none does",
        name="minOffsetsPerTrigger",
        streaming=True,
    )
    max_delay: float = option(
        values.read_duration,
        "with `minOffsetsPerTrigger`: wait no longer than this after the last micro-batch was planned",
        default="15m",
        name="maxTriggerDelay",
        needs=("minOffsetsPerTrigger",),
        streaming=True,
    )

    def check_trigger_limits(self) -> None:
        """Check that a micro-batch may be as large as its minimum.

        Raises:
            OptionError: the maximum is below the minimum.
        """
        if self.max_offsets and self.min_offsets and self.min_offsets > self.max_offsets:
            raise OptionError(MORE_THAN_MOST(least=self.min_offsets, most=self.max_offsets))


class StreamScan(Partitions, Triggers, DataLoss, JetStreamQuery, section=RANGE):
    """The options of a query that reads streams, or the stream of a bucket or object store: start and partitions."""

    starting_offsets: Offsets = option(
        values.read_offsets,
        "where to begin: `earliest` (the default with `consume`), `latest` or, for each stream in JSON, the first "
        "sequence, a consumer (`consumer:billing`: after all that it has acknowledged), or an offset copied from a "
        "checkpoint, which is then compared with what the stream has",
        default="latest",
        batch_default="earliest",
    )
    starting_timestamp: datetime | None = option(
        values.read_timestamp,
        "begin with the first message stored at or after this time; in streaming, if there is none yet, with the "
        "next one",
        excludes=("startingOffsets",),
    )
    starting_must_exist: bool = option(
        values.read_if_must_exist,
        "what to do when a stream has no message since `startingTimestamp` that the query reads: `latest` begins with "
        "the next one, `error` fails before anything is read",
        default=LATEST,
        name="startingOffsetsByTimestampStrategy",
        needs=("startingTimestamp",),
    )
    max_records_per_partition: int = option(
        values.read_whole_number, "most sequences in one partition", default="500000", section=Partitions.section
    )

    @property
    def starting(self) -> Offsets | datetime:
        """The start of the query."""
        return self.starting_timestamp or self.starting_offsets

    def starting_offsets_for(self, name: str, stream: str) -> Offsets:
        """Return ``starting_offsets``; those for ``name``, a bucket or object store, are returned for ``stream``.

        Raises:
            OptionError: the offsets are for another name.
        """
        self.check_offset_streams("startingOffsets", self.starting, (name,))
        offsets = self.starting_offsets
        return {stream: offsets[name]} if isinstance(offsets, dict) else offsets

    @staticmethod
    def check_offset_streams(option: str, offsets: Offsets | datetime | None, streams: tuple[str, ...]) -> None:
        """Check that offsets in JSON are for exactly these streams.

        Raises:
            OptionError: the offsets are for other streams.
        """
        if isinstance(offsets, dict) and set(offsets) != set(streams):
            found = ", ".join(sorted(offsets)) or "no stream"
            raise OptionError(OFFSETS_FOR_OTHERS(option=option, offsets=found, streams=", ".join(streams)))
