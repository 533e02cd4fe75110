"""The report of a loss, such as of messages that the query has not read yet: ``failOnDataLoss`` makes it an error."""

from __future__ import annotations

import logging

from spark_nats.conditions import ConditionText
from spark_nats.conditions.queries import LOSS_ACCEPTED
from spark_nats.errors import DataLossError

logger = logging.getLogger(__name__)

GO_ON = "set the option 'failOnDataLoss' to false to continue with"
"""The beginning of a remedy; its end names what the query then continues with."""


def raise_or_log_loss(what: ConditionText, fail: bool, rest: str = "what there is", hint: str = "") -> None:
    """Raise an error or log a warning about a loss.

    Args:
        what: what is lost or, for a replay, unknown, and the reason.
        fail: the value of the option ``failOnDataLoss``.
        rest: what the query continues with when it does not fail.
        hint: the remedy in the error; empty for :data:`GO_ON` with ``rest``.

    Raises:
        DataLossError: ``fail`` is True.
    """
    if fail:
        raise DataLossError(what.with_text(f"{what}; {hint or f'{GO_ON} {rest}'}"))
    logger.warning(LOSS_ACCEPTED(loss=what, rest=rest).with_code)
