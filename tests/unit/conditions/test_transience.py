"""What passes by itself, and why: a fact of each error, on which no hint bears."""

from __future__ import annotations

import ast

import pytest

from scripts.conditions_page import SPARK_NATS, conditions
from spark_nats.client import connect
from spark_nats.conditions import Topic, Transient
from spark_nats.conditions.client import CONNECTION_BROKE, CREDENTIALS_REFUSED
from spark_nats.conditions.jetstream import STREAM_NOT_FOUND
from spark_nats.errors import AuthorizationError, NatsConnectionError
from spark_nats.options import connection_options
from spark_nats.protocol.api import ApiError, ErrCode
from spark_nats.protocol.control import ErrorKind
from tests.scripted_server import INFO, Peer, scripted_server
from tests.servers import free_ports

ALL = dict(conditions())

REASONS = {
    Transient.ALWAYS: {
        "a connection is lost where a network fails, or a server ends; another one can be made": (
            "CONNECTION_BROKE SERVER_CLOSED SERVER_SILENT PING_TIMEOUT CONNECTION_CLOSED SERVER_SHUTTING_DOWN "
            "TLS_FAILED PROXY_UNREACHABLE"
        ),
        "a login that was accepted has ended; whether the credentials still log in, the next one shows": "LOGIN_ENDED",
        "a server that has much to do answers later": (
            "PROXY_TIMEOUT WEBSOCKET_TIMEOUT INFO_TIMEOUT TLS_TIMEOUT CONNECT_TIMEOUT SEND_TIMEOUT REQUEST_TIMEOUT "
            "IDS_NOT_SAID IDS_NOT_SAID_NOW BATCH_NOT_ANSWERED"
        ),
        "servers elect a leader, or bring each other up to date": (
            "NO_LEADER LEADER_ALONE LOSS_DOUBTFUL STOPPED_DELIVERING NO_MOMENT NO_CONSUMER_AT_LEADER"
        ),
        "somebody else changes it at this moment": (
            "LISTING_CHANGES KEYS_MOVE_ON DURABLE_JUST_MADE DURABLE_JUST_DELETED CONSUMERS_NOT_LISTED"
        ),
        "the one that is asked may come first the next time": "ANSWERED_BY_ANOTHER ANSWERED_ELSEWHERE",
    },
    Transient.ONCE_ESTABLISHED: {
        "a server that starts has not found its accounts yet; else the login is wrong": (
            "NO_LOGIN CREDENTIALS_REFUSED CLIENT_CERTIFICATE_REFUSED NOTHING_TO_SIGN"
        ),
        "whoever decides about a login did not answer the server, and may be back soon": "LOGIN_UNDECIDED",
        "a gateway says so while its server restarts; else it is the wrong port or path": (
            "WEBSOCKET_REFUSED WEBSOCKET_NOT_SPOKEN WEBSOCKET_FAILED CLOSED_BEFORE_INFO"
        ),
        "JetStream starts, or the stream has no leader; else there is none": (
            "JETSTREAM_UNAVAILABLE BUCKET_UNAVAILABLE OBJECT_STORE_UNAVAILABLE"
        ),
    },
}
EXPECTED = {
    name: transient for transient, reasons in REASONS.items() for names in reasons.values() for name in names.split()
}


@pytest.mark.parametrize("name", ALL)
def test_a_condition_passes_by_itself_only_for_a_reason(name: str) -> None:
    assert ALL[name].transient is EXPECTED.get(name, Transient.NEVER)


def test_the_reasons_are_about_conditions() -> None:
    assert set(EXPECTED) <= set(ALL)


@pytest.mark.parametrize("topics", [[], [Topic.TLS], [Topic.WEBSOCKET], list(Topic)])
@pytest.mark.parametrize(
    "said", [CONNECTION_BROKE(server="S", reason="R"), CREDENTIALS_REFUSED(server="S", reason="R")], ids=str
)
def test_advice_does_not_decide_whether_a_query_survives(said: str, topics: list[Topic]) -> None:
    error = NatsConnectionError(said).with_topics(*topics)
    assert error.transient is NatsConnectionError(said).transient
    assert error.with_topics(Topic.PROXY).transient is error.transient


def test_other_words_do_not_decide_it_either() -> None:
    error = NatsConnectionError(CONNECTION_BROKE(server="S", reason="R"))
    for other in ("other words", STREAM_NOT_FOUND(stream="S")):
        assert error.with_message(other).transient is Transient.ALWAYS


@pytest.mark.parametrize(
    ("transient", "at_first", "later"),
    [(Transient.NEVER, False, False), (Transient.ONCE_ESTABLISHED, False, True), (Transient.ALWAYS, True, True)],
)
def test_what_has_worked_before_is_given_more_time(transient: Transient, at_first: bool, later: bool) -> None:
    error = AuthorizationError("refused", transient=transient)
    assert error.may_pass(established=False) is at_first
    assert error.may_pass(established=True) is later


@pytest.mark.parametrize(
    ("code", "err_code", "transient"),
    [
        (503, ErrCode.CLUSTER_NOT_AVAILABLE, Transient.ALWAYS),
        (503, ErrCode.STREAM_OFFLINE, Transient.ALWAYS),
        (500, ErrCode.STREAM_OFFLINE_REASON, Transient.ALWAYS),
        (503, 0, Transient.ALWAYS),  # of an old server: no leader
        (503, ErrCode.NOT_ENABLED, Transient.ONCE_ESTABLISHED),
        (503, ErrCode.NOT_ENABLED_FOR_ACCOUNT, Transient.ONCE_ESTABLISHED),
        (503, 10023, Transient.ONCE_ESTABLISHED),  # servers that are away would have room
        (404, ErrCode.STREAM_NOT_FOUND, Transient.NEVER),
        (400, 10003, Transient.NEVER),
        (400, 0, Transient.NEVER),
    ],
)
def test_an_answer_of_the_api_passes_by_its_codes(code: int, err_code: int, transient: Transient) -> None:
    assert ApiError(code, err_code, "").transient is transient


@pytest.mark.parametrize(
    ("reason", "transient"), [("peer offline", Transient.ALWAYS), ("tags not matched", Transient.NEVER)]
)
def test_a_stream_that_finds_no_servers_may_find_them_when_they_are_back(reason: str, transient: Transient) -> None:
    error = ApiError(400, ErrCode.NO_PEERS, f"no suitable peers for placement, {reason}")
    assert error.transient is transient


@pytest.mark.parametrize("kind", ErrorKind)
def test_an_error_of_the_server_passes_by_its_kind(kind: ErrorKind) -> None:
    assert kind.is_transient is (kind in (ErrorKind.LIMITED, ErrorKind.OVERLOADED, ErrorKind.FATAL))


def test_nobody_reads_topics_to_decide_what_to_do() -> None:
    """Who reads them puts them into a sentence, or gives others."""
    readers = {
        path.relative_to(SPARK_NATS).as_posix()
        for path in SPARK_NATS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "topics" and isinstance(node.ctx, ast.Load)
    }
    assert not [each for each in readers if each.startswith("client/") and each != "client/connection.py"]


def test_only_errors_decide_what_passes() -> None:
    """Others ask `is_transient`; what comes from a server's code is handed to the error where it is raised."""
    deciding = {
        path.relative_to(SPARK_NATS).as_posix()
        for path in SPARK_NATS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Attribute) and each.attr == "transient" for each in ast.walk(node))
    }
    assert deciding == {"errors.py"}


def offers_no_tls(peer: Peer) -> None:
    peer.send(INFO)
    peer.wait_for_close()


def test_a_failure_to_connect_passes_if_one_of_the_servers_may_come_back() -> None:
    away = f"nats://127.0.0.1:{free_ports(1)[0]}"
    with scripted_server(offers_no_tls) as one, scripted_server(offers_no_tls) as two:
        for urls, transient in ((f"{one},{two}", Transient.NEVER), (f"{one},{away}", Transient.ALWAYS)):
            with pytest.raises(NatsConnectionError, match="does not offer TLS") as raised:
                connect(connection_options(servers=urls.replace("nats:", "tls:")))
            assert raised.value.transient is transient
