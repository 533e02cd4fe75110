"""Decides who filters: the server, or the reader, to which the server then sends every message.

The server finds rare messages far faster than it could send all. But no formula predicts the cost of its search:
depending on subjects, blocks and number of filters it takes from 0.2 to 40 microseconds for a sequence, where sending,
decoding and matching one here takes about two. So where nearly all messages match, the server sends all from the start.
Otherwise the server filters first, the reader measures its progress, and the side changes when the other one would be
faster. ``make bench ARGS="--only filters"`` compares both sides with what this module chooses.
"""

from __future__ import annotations

AMPLE_SHARE = 0.75
"""If this share of messages or more matches, the server sends everything: its search cannot be faster then."""
TRIAL = 0.05  # seconds of reading after which its progress is believed
_MARGIN = 1.5  # factor by which the other side must promise to be faster
_SEQUENCE, _BYTE = 2e-6, 1.5e-9  # seconds that a message and each of its bytes take to be sent here and matched


class FilterPlacement:
    """Decides for one range who filters: nobody, without filters. What it decides costs time but never rows."""

    def __init__(self, filtered: bool) -> None:
        self.by_server = filtered  # whether the server filters
        self._filtered = filtered
        self._here = _SEQUENCE  # seconds to send and match a sequence here, estimated
        self._there: float | None = None  # seconds that the server took for a sequence; None when unknown
        self._changes = 0  # changes of the side so far; 2 when the side is fixed

    def fix_filtering_side(self, by_server: bool) -> None:
        """Fix who filters: the server if ``by_server``, else the reader; nobody if there are no filters."""
        self.by_server = by_server and self._filtered
        self._changes = 2

    def filter_here_if_most_match(self, share: float, average_size: float) -> None:
        """Estimate the reader's speed, and have the reader filter for good if the share of matching messages is ample.

        The share is from 0 to 1, and the average size that of all messages in bytes. After a change or
        :meth:`fix_filtering_side`, both are ignored.
        """
        if self._changes == 0:
            self._here = _SEQUENCE + _BYTE * average_size
            if self._filtered and share >= AMPLE_SHARE:
                self.fix_filtering_side(by_server=False)

    def change_if_slow(self, seconds: float, passed: int, remaining: int) -> bool:
        """Tell whether to change sides now, and if so, do.

        The present side has taken ``seconds`` for ``passed`` sequences, and has ``remaining`` sequences left.
        """
        if self._changes == 2 or not self._filtered or seconds < TRIAL:
            return False
        if self.by_server:
            self._there = seconds / passed if passed else None
            # A search that has found nothing yet may be near its end: it gets twice the time of sending everything.
            slow = seconds > _MARGIN * passed * self._here if passed else seconds > 2 * remaining * self._here
        else:
            slow = self._there is not None and 0 < _MARGIN * passed * self._there < seconds
        if slow:
            self.by_server = not self.by_server
            self._changes += 1
        return slow
