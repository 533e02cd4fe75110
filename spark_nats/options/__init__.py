"""The declaration of options, the options of a connection, and the options that several kinds of queries share.

An option that is unknown, has an invalid value or contradicts another raises :class:`~spark_nats.errors.OptionError`,
which names the option, the value (unless it is a secret) and the remedy. The packages below know no options.
"""

from spark_nats.options.settings import Settings, connection_options, options_of_urls

__all__ = ["Settings", "connection_options", "options_of_urls"]
