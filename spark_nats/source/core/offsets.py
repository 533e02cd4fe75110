"""Offsets of core NATS: how many messages a process had received."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_nats.errors import NatsError
from spark_nats.protocol.documents import integer_at, string_at


class CoreOffset(NamedTuple):
    """How far a query has come.

    Attributes:
        epoch: tells the process that received the messages from others: each start of the query is another.
        messages: how many messages it had received.
    """

    epoch: str
    messages: int

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it."""
        return {"epoch": self.epoch, "messages": self.messages}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CoreOffset:
        """Return an offset that Spark kept.

        Raises:
            NatsError: it was not written by this source.
        """
        try:
            epoch, messages = string_at(document, "epoch"), integer_at(document, "messages")
            if not re.fullmatch("[0-9a-f]{16}", epoch):  # it becomes part of the spool's paths
                raise ValueError
            return cls(epoch, messages)
        except ValueError:
            raise NatsError(
                f"the checkpoint's offset {document!r} is not one of core NATS; was the checkpoint another query's?"
            ) from None
