"""How an error leaves us: its sentence first, its frames in the log, and mistakes of ours as they are."""

import logging
import traceback

import pytest

from spark_nats.conditions import Topic
from spark_nats.errors import AuthorizationError, NatsError
from spark_nats.options.hints import errors_for_spark


def refuse():
    raise AuthorizationError("the server refused").with_topics(Topic.CREDENTIALS)


@errors_for_spark()
def ask():
    refuse()


def raised_by(action):
    with pytest.raises(Exception) as raised:
        action()
    return raised.value


def test_an_error_is_printed_with_its_sentence_first_and_last_and_without_the_frames_of_its_cause():
    error = raised_by(ask)
    assert isinstance(error, AuthorizationError)
    assert str(error).startswith("the server refused; check the options 'user' and 'password'")
    printed = "".join(traceback.format_exception(error)).splitlines()
    assert printed[0] == printed[-1] == f"spark_nats.errors.AuthorizationError: {error}"
    assert "in refuse" not in "\n".join(printed)


def test_the_sentence_is_still_first_when_pyspark_takes_the_cause_away():
    error = raised_by(ask)
    error.__cause__ = None
    assert "".join(traceback.format_exception(error)).startswith("spark_nats.errors.AuthorizationError: the server")


def test_an_error_that_is_raised_from_none_has_no_cause():
    def action():
        try:
            refuse()
        except NatsError as error:
            raise NatsError(f"another than {error}") from None

    assert raised_by(action).__cause__ is None


def test_the_frames_are_in_the_log(caplog):
    with caplog.at_level(logging.DEBUG, "spark_nats"):
        raised_by(ask)
    assert "in refuse" in caplog.text


def test_options_are_named_once():
    @errors_for_spark()
    def twice():
        ask()

    assert str(raised_by(twice)).count("check the options") == 1


def test_a_mistake_of_ours_keeps_its_traceback():
    @errors_for_spark()
    def action():
        {}["mistake"]

    error = raised_by(action)
    assert type(error) is KeyError
    assert error.__cause__ is None
    assert "in action" in "".join(traceback.format_exception(error))
