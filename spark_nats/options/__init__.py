"""What an option is, how to connect, and what queries of several kinds have in common.

Whatever is unknown, has an invalid value or contradicts another is an :class:`~spark_nats.errors.OptionError` that
names the option, the value (never a secret's) and what to do. Nothing below this package knows that there are options.
"""

from spark_nats.options.settings import Settings, connection_options, options_of_urls

__all__ = ["Settings", "connection_options", "options_of_urls"]
