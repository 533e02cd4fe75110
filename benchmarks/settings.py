"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Sizes and rounds.

    Attributes:
        quick: a look and not a measurement.
        rounds: how often each contender runs.
        servers: a server that is there already; None for an embedded one.
        budget: seconds within which a suite that heeds them ends; None for any time.
        grounds: those of the suite large that are measured; all if there are none.
    """

    quick: bool
    rounds: int
    servers: str | None
    budget: float | None = None
    grounds: tuple[str, ...] = ()

    @property
    def megabytes(self) -> int:
        """MiB of wire that a codec handles in one run."""
        return 8 if self.quick else 32

    @property
    def messages(self) -> int:
        """Messages of a read or a core publish; peers that are slower by far handle a fraction."""
        return 131_072 if self.quick else 983_040  # a multiple of the feeder's parts

    @property
    def published(self) -> int:
        """Messages of an acknowledged publish."""
        return 50_000 if self.quick else 600_000

    @property
    def filtered(self) -> int:
        """Messages of a stream that is read with filters."""
        return 60_000 if self.quick else 300_000

    @property
    def long_read(self) -> int:
        """Messages that one worker reads to show that its memory stays flat."""
        return 2_000_000 if self.quick else 10_000_000
