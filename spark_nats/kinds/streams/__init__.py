"""Streams: exact, replayable, parallel."""
