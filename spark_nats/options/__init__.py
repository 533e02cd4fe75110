"""The options of ``format("nats")``.

Whatever is unknown, has an invalid value or contradicts another is an :class:`~spark_nats.errors.OptionError` that
names the option, the value (never a secret's) and what to do. Nothing below this package knows that there are options.
"""

from spark_nats.options.queries import parse_read, parse_write, parse_write_objects
from spark_nats.options.read import BucketReadOptions, CoreReadOptions, ObjectReadOptions, ReadOptions, TableReadOptions
from spark_nats.options.settings import Settings, connection_options, options_of_urls, parse
from spark_nats.options.table import OPTIONS
from spark_nats.options.write import WriteOptions

__all__ = [
    "OPTIONS",
    "BucketReadOptions",
    "CoreReadOptions",
    "ObjectReadOptions",
    "ReadOptions",
    "Settings",
    "TableReadOptions",
    "WriteOptions",
    "connection_options",
    "options_of_urls",
    "parse",
    "parse_read",
    "parse_write",
    "parse_write_objects",
]
