"""The version of this package, defined only here, so that it is known without installed metadata."""

__version__ = "0.1.0"
