"""What queries of all kinds have of options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.conditions.options import NO_SUBJECTS_TO_CREATE, ONE_STREAM_TO_CREATE, OTHER_STREAM_TO_CREATE
from spark_nats.errors import OptionError
from spark_nats.options import values
from spark_nats.options.rows import (
    ANY,
    BATCH,
    BUCKET,
    OBJECTS,
    READ,
    STREAM,
    STREAMING,
    TABLE,
    WRITE,
    option,
    value_of,
)
from spark_nats.options.values import Offsets
from spark_nats.protocol.keyvalue import bucket_config, key_filter
from spark_nats.protocol.stream_configs import Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is read or written, as options say it: streams, buckets and subjects, and from where to where."""

    stream: tuple[str, ...] | None = option(
        ANY & ~OBJECTS,
        values.read_names,
        "stream to read (several: comma-separated) or to write to; without `stream`, `streamPattern`, `bucket`, "
        "`table` and `objectStore`, core NATS is read or written; with `table`: only these streams",
    )
    stream_pattern: re.Pattern[str] | None = option(
        READ & (STREAM | TABLE),
        values.read_pattern,
        "regular expression: every stream whose whole name matches is read, also one that is created while the "
        "query runs; with `table`: only these streams",
    )
    bucket: str | None = option(ANY & ~TABLE & ~OBJECTS, values.read_bucket, "KV bucket to read or to write to")
    table: str | None = option(
        READ & TABLE,
        values.read_table,
        "batch: what the account holds, as a table: `streams`, `consumers`, `buckets` or `subjects`",
    )
    object_store: str | None = option(
        OBJECTS, values.read_bucket, "object store whose objects to read, or to put objects into"
    )
    object_pattern: re.Pattern[str] | None = option(
        READ & OBJECTS, values.read_pattern, "regular expression: read only objects whose whole name matches"
    )
    create_stream: bool | Wish = option(
        STREAM,
        values.read_create_stream,
        "create the stream if it does not exist: `true` (for the subjects in `subject`) or its configuration in JSON, "
        'such as `{"subjects": ["orders.>"], "max_age": "48h", "replicas": 3}`',
        default="false",
    )
    create_bucket: dict[str, Any] | None = option(
        BUCKET,
        values.read_create_bucket,
        'create the bucket if it does not exist: `true` or its configuration in JSON, such as `{"history": 5}`',
        default="false",
    )
    create_object_store: dict[str, Any] | None = option(
        WRITE & OBJECTS,
        values.read_create_object_store,
        "create the object store if it does not exist: `true` or its configuration in JSON, such as "
        '`{"max_bytes": 1000000000, "replicas": 3}`',
        default="false",
    )
    keys: tuple[str, ...] | None = option(
        READ & BUCKET,
        values.read_filters,
        "read only these keys, comma-separated, with wildcards; a batch has a partition for each of them",
    )
    subject: str | None = option(
        ANY & ~BUCKET & ~OBJECTS,
        values.read_text,
        "reading, also of the table `subjects`: only these subjects, comma-separated, with wildcards; writing: the "
        "subject of every row",
    )
    starting_offsets: Offsets = option(
        READ & STREAM | READ & (BUCKET | OBJECTS) & STREAMING,
        values.read_offsets,
        "where to begin: `earliest` (the default with `consume`), `latest` or, for each stream in JSON, the first "
        "sequence, a consumer that has come so far (`consumer:billing`), or an offset copied from a checkpoint, which "
        "is then compared with what the stream has",
        default="latest",
        batch_default="earliest",
    )
    ending_offsets: Offsets = option(
        READ & STREAM & BATCH,
        values.read_offsets,
        "batch: where to end: `latest` or, for each stream in JSON, the sequence before which to stop, a consumer "
        "that has come so far, or an offset copied from a checkpoint",
        default="latest",
    )
    starting_timestamp: datetime | None = option(
        READ & STREAM | READ & (BUCKET | OBJECTS) & STREAMING,
        values.read_timestamp,
        "begin with the first message stored at or after this time; in streaming, if there is none yet, with the "
        "next one",
    )
    ending_timestamp: datetime | None = option(
        READ & STREAM & BATCH, values.read_timestamp, "batch: end before the first message stored at or after this time"
    )
    state_bucket: str = option(
        WRITE & STREAM & STREAMING,
        values.read_bucket,
        "streaming: KV bucket in which `deduplicate=exact` notes where each micro-batch begins; created if it "
        "does not exist",
        default="SPARK_NATS",
    )

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects, to read of a stream, which must not overlap; empty for all."""
        return () if self.subject is None else value_of("subject", self.subject, values.read_filters)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects, of core NATS."""
        return () if self.subject is None else value_of("subject", self.subject, values.read_subjects)

    @property
    def key_filters(self) -> tuple[str, ...]:
        """The subjects of the keys; empty for all."""
        return tuple(map(key_filter, self.keys or ()))

    def to_create(self, subjects: tuple[str, ...]) -> dict[str, Any] | None:
        """Return the configuration with which to make a missing stream, or the one that a bucket is.

        Args:
            subjects: what the stream listens on unless its configuration says.

        Returns:
            None when it must exist.

        Raises:
            OptionError: the configuration is for another stream, for several, or does not say what it listens on.
        """
        if self.bucket is not None:
            return None if self.create_bucket is None else bucket_config(self.bucket, self.create_bucket)
        wish, streams = self.create_stream, self.stream or ()
        if wish is False:
            return None
        if len(streams) > 1:
            raise OptionError(ONE_STREAM_TO_CREATE(streams=", ".join(streams)))
        if wish is True:
            if not subjects:
                raise OptionError(NO_SUBJECTS_TO_CREATE())
            return {"name": streams[0], "subjects": list(subjects)}
        if wish.get("name", streams[0]) != streams[0]:
            raise OptionError(OTHER_STREAM_TO_CREATE(name=wish["name"], stream=streams[0]))
        return Wish.of({**wish, "name": streams[0]}, wish.named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What every query has.

    A value means something where its option applies; elsewhere it is the option's default.
    """

    connection: ConnectionOptions
    api_prefix: str
    retries: RetryOptions
    fail_on_data_loss: bool = option(
        READ & (STREAM | BUCKET | STREAMING | OBJECTS) | WRITE & STREAM,
        values.read_boolean,
        "fail when messages that were to be read are lost, or the content of an object, or messages that "
        "`deduplicate=exact` needs to tell what is stored already; with `asOf`: when it is not known what the bucket "
        "held; `false`: log a warning and continue",
        default="true",
    )
