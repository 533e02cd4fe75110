"""Reporting messages that a query had still to read and that are gone: an error or a warning, by ``failOnDataLoss``."""

from __future__ import annotations

import logging

from spark_nats.conditions import ConditionText, with_text
from spark_nats.conditions.options import LOSS_ACCEPTED
from spark_nats.errors import DataLossError

logger = logging.getLogger(__name__)

GO_ON = "set the option 'failOnDataLoss' to false to continue with"
"""What follows says where the query then goes on."""


def report_loss(what: ConditionText, fail: bool, rest: str = "what there is", hint: str = "") -> None:
    """Fail or warn about messages that are gone.

    Args:
        what: which ones, and why.
        fail: as the option ``failOnDataLoss`` says.
        rest: what the query goes on with otherwise.
        hint: how else to go on; empty when :data:`GO_ON` says it all.

    Raises:
        DataLossError: if ``fail``.
    """
    if fail:
        raise DataLossError(with_text(what, f"{what}; {hint or f'{GO_ON} {rest}'}"))
    logger.warning(LOSS_ACCEPTED(loss=what, rest=rest).with_code)
