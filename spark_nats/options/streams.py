"""The stream that the option ``createStream`` has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_nats.errors import OptionError
from spark_nats.protocol.stream_configs import Wish


def stream_to_create(
    values: Mapping[str, Any], streams: tuple[str, ...], subjects: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the configuration with which to make a missing stream, None when it must exist.

    Args:
        values: of all options.
        streams: which are read or written to.
        subjects: what the stream listens on unless its configuration says.

    Raises:
        OptionError: the configuration is for another stream, for several, or does not say what it listens on.
    """
    wish = values["createStream"]
    if wish is None or wish is False:
        return None
    if len(streams) > 1:
        raise OptionError(f"option 'createStream' makes one stream, but 'stream' names {', '.join(streams)}")
    if wish is True:
        if not subjects:
            raise OptionError(
                "option 'createStream' is true, but what the stream shall listen on is not known: set the option "
                '\'subject\', or give the stream\'s configuration, such as {"subjects": ["orders.>"]}'
            )
        return {"name": streams[0], "subjects": list(subjects)}
    if wish.get("name", streams[0]) != streams[0]:
        raise OptionError(f"option 'createStream' has the name {wish['name']!r}, but 'stream' is {streams[0]!r}")
    return Wish.of({**wish, "name": streams[0]}, wish.named)
