"""The options of ``format("nats")``.

=====================  ======================================================================
:mod:`.table`          all options: where each applies, how it is read, its default
:mod:`.values`         how texts become values
:mod:`.context`        contexts of the ``nats`` command line
:mod:`.files`          files that options name
:mod:`.hints`          what is said of options that do not exist
:mod:`.settings`       options as they were set, with their values read
:mod:`.read`           what a query reads
:mod:`.write`          what a query writes to
:mod:`.streams`        the stream that ``createStream`` has made
:mod:`.remedies`       which options to look at when something goes wrong
:mod:`.losses`         reporting messages that are gone, as ``failOnDataLoss`` says
=====================  ======================================================================

Whatever is unknown, has an invalid value or contradicts another is an :class:`~spark_nats.errors.OptionError` that
names the option, the value (never a secret's) and what to do. Nothing below this package knows that there are options.
"""

from spark_nats.options.read import BucketReadOptions, CoreReadOptions, ReadOptions, parse_read
from spark_nats.options.settings import Settings, connection_options, options_of_urls, parse
from spark_nats.options.table import OPTIONS
from spark_nats.options.write import WriteOptions, parse_write

__all__ = [
    "OPTIONS",
    "BucketReadOptions",
    "CoreReadOptions",
    "ReadOptions",
    "Settings",
    "WriteOptions",
    "connection_options",
    "options_of_urls",
    "parse",
    "parse_read",
    "parse_write",
]
