"""The version of this package: here and nowhere else, so that it is known without installed metadata."""

__version__ = "0.1.0"
