"""What an error knows of its condition, and where its code is shown."""

from __future__ import annotations

import copy
import pickle

import pytest

from spark_nats.client.auth import Credentials
from spark_nats.client.servers import Server
from spark_nats.conditions import ConditionText
from spark_nats.conditions.client import CREDENTIALS_REFUSED
from spark_nats.conditions.jetstream import API_ERROR, BUCKET_NOT_FOUND, STREAM_NOT_FOUND
from spark_nats.errors import JetStreamError, NatsError, StreamNotFoundError
from spark_nats.options.data_loss import raise_or_log_loss
from spark_nats.options.hints import errors_for_spark


@pytest.fixture
def error() -> NatsError:
    return StreamNotFoundError(STREAM_NOT_FOUND(stream="S"), 404)


def test_an_error_has_its_condition_and_what_was_put_into_the_sentence(error: NatsError) -> None:
    assert str(error) == "the stream 'S' does not exist"
    assert error.condition == "NATS_STREAM_NOT_FOUND"
    assert error.parameters == {"stream": "S"}


def test_an_error_of_somebody_else_has_none() -> None:
    assert NatsError("text").condition == ""
    assert NatsError("text").parameters == {}
    assert str(NatsError("text").with_code()) == "text"


def test_other_words_leave_the_condition_and_another_condition_takes_its_place(error: NatsError) -> None:
    longer = error.with_message(f"{error}; tried 3 times")
    assert (str(longer), longer.condition) == ("the stream 'S' does not exist; tried 3 times", error.condition)
    other = error.with_message(BUCKET_NOT_FOUND(bucket="B", hint=""))
    assert (other.condition, other.parameters["bucket"]) == ("NATS_BUCKET_NOT_FOUND", "B")
    assert type(other) is StreamNotFoundError


def test_the_code_stands_before_the_sentence_once(error: NatsError) -> None:
    said = "[NATS_STREAM_NOT_FOUND] the stream 'S' does not exist"
    assert str(error.with_code()) == str(error.with_code().with_code()) == said
    with pytest.raises(StreamNotFoundError) as raised, errors_for_spark(), errors_for_spark():
        raise error
    assert str(raised.value) == f"{said}; create it, or set the option 'createStream'"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_has_the_condition_too(error: NatsError, again) -> None:  # type: ignore[no-untyped-def]
    assert again(error).condition == error.condition
    assert again(error).parameters == error.parameters


def test_only_texts_and_numbers_are_kept() -> None:
    server = Server("localhost", 4222, credentials=Credentials("ann", "s3cret"))
    said = CREDENTIALS_REFUSED(server=server, reason=ValueError("Authorization Violation"))
    assert said.parameters == {"server": "nats://localhost:4222", "reason": "Authorization Violation"}
    assert "s3cret" not in repr(said.parameters)
    numbers = API_ERROR(request="STREAM.INFO", reason="no", code=500, err_code=1).parameters
    assert (numbers["code"], numbers["err_code"]) == (500, 1)


def test_a_loss_is_of_the_same_condition_with_advice_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    what = STREAM_NOT_FOUND(stream="S")
    with pytest.raises(NatsError, match="does not exist; set the option 'failOnDataLoss'") as raised:
        raise_or_log_loss(what, fail=True)
    assert raised.value.condition == what.condition
    raise_or_log_loss(what, fail=False)
    (record,) = caplog.records
    assert record.getMessage() == f"[NATS_LOSS_ACCEPTED] {what}; the query continues with what there is"
    said = record.msg
    assert isinstance(said, ConditionText)
    assert said.condition == "NATS_LOSS_ACCEPTED"
    assert said.parameters == {"loss": what, "rest": "what there is"}


def test_an_error_of_the_api_has_the_codes_of_the_server() -> None:
    error = JetStreamError(API_ERROR(request="R", reason="full", code=503, err_code=10077), 503, 10077, "full")
    assert str(error) == "R failed: full (503, 10077)"
