"""The one-line operations: INFO and CONNECT, SUB and UNSUB, and what an -ERR means."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.errors import ProtocolError
from spark_nats.protocol.control import (
    PING,
    PONG,
    ConnectOptions,
    ErrorKind,
    ServerInfo,
    encode_sub,
    encode_unsub,
    error_kind,
    error_text,
    parse_info,
)
from spark_nats.protocol.subjects import filter_violation, queue_violation
from tests.unit.reference import read_client_stream
from tests.unit.strategies import subjects

# The table of INFO's fields in client-protocol-current-ru.md: name and type.
INFO_FIELDS: dict[str, type] = {
    "server_id": str,
    "server_name": str,
    "version": str,
    "go": str,
    "host": str,
    "port": int,
    "headers": bool,
    "max_payload": int,
    "proto": int,
    "client_id": int,
    "auth_required": bool,
    "tls_required": bool,
    "tls_verify": bool,
    "tls_available": bool,
    "connect_urls": list,
    "ws_connect_urls": list,
    "ldm": bool,
    "git_commit": str,
    "jetstream": bool,
    "ip": str,
    "client_ip": str,
    "nonce": str,
    "cluster": str,
    "domain": str,
}
# The table of CONNECT's fields: name and type.
CONNECT_FIELDS: dict[str, type] = {
    "verbose": bool,
    "pedantic": bool,
    "tls_required": bool,
    "auth_token": str,
    "user": str,
    "pass": str,
    "name": str,
    "lang": str,
    "version": str,
    "protocol": int,
    "echo": bool,
    "sig": str,
    "jwt": str,
    "no_responders": bool,
    "headers": bool,
    "nkey": str,
}
SAMPLES: dict[type, Any] = {str: "text", int: 7, bool: True, list: ["10.0.0.1:4222", "[::1]:4222"]}
WRONG: dict[type, list[Any]] = {
    str: [1, True, ["a"], {"a": "b"}],
    int: ["1", 1.5, True, [1]],
    bool: ["true", 1, 0, [True]],
    list: ["a", 1, True, {"a": "b"}, [1], ["a", None], [["a"]]],
}


def info(document: Any) -> ServerInfo:
    return parse_info(json.dumps(document).encode())


def connect_document(options: ConnectOptions) -> dict[str, Any]:
    [(op, argument)] = read_client_stream(options.encode())
    assert op == b"CONNECT"
    document = json.loads(argument)
    assert isinstance(document, dict)
    return document


class TestInfo:
    def test_the_fields_are_those_of_the_protocols_table(self) -> None:
        assert {f.name for f in fields(ServerInfo)} == set(INFO_FIELDS)

    @pytest.mark.parametrize(("name", "kind"), INFO_FIELDS.items())
    def test_each_field_is_read(self, name: str, kind: type) -> None:
        value = SAMPLES[kind]
        expected = tuple(value) if kind is list else value
        assert getattr(info({name: value}), name) == expected
        everything = info({field: SAMPLES[of] for field, of in INFO_FIELDS.items()})
        assert getattr(everything, name) == expected

    @pytest.mark.parametrize(("name", "kind"), INFO_FIELDS.items())
    def test_a_field_left_out_or_null_has_its_default(self, name: str, kind: type) -> None:
        expected = () if kind is list else kind()
        assert getattr(info({}), name) == expected
        assert getattr(info({name: None}), name) == expected

    @pytest.mark.parametrize(
        ("name", "value"),
        [pytest.param(n, v, id=f"{n}={v!r}") for n, kind in INFO_FIELDS.items() for v in WRONG[kind]],
    )
    def test_a_field_of_another_type_is_a_protocol_error_that_names_it(self, name: str, value: Any) -> None:
        with pytest.raises(ProtocolError, match=f"'{name}'"):
            info({"server_id": "x", name: value})

    def test_unknown_fields_are_ignored(self) -> None:
        assert info({"port": 1, "xkey": "X", "acc_is_sys": True, "new": {"deep": [1]}}) == ServerInfo(port=1)

    def test_large_client_ids_are_exact(self) -> None:
        assert info({"client_id": 2**64 - 1}).client_id == 2**64 - 1

    @pytest.mark.parametrize(
        "argument",
        [
            pytest.param(b"", id="nothing"),
            pytest.param(b"{", id="torn"),
            pytest.param(b'{"port":1} more', id="more-after-it"),
            pytest.param(b"{'port':1}", id="single-quotes"),
            pytest.param(b'{"server_id":"\xff"}', id="no-utf8"),
            pytest.param(b"[]", id="list"),
            pytest.param(b'"text"', id="string"),
            pytest.param(b"1", id="number"),
            pytest.param(b"null", id="null"),
            pytest.param(b"[" * 60_000, id="deeply-nested-list"),
            pytest.param(b'{"a":' * 10_000, id="deeply-nested-object"),
            pytest.param(b'{"port":' + b"1" * 5000 + b"}", id="number-of-5000-digits"),
            pytest.param(b"\x00\x01", id="binary"),
        ],
    )
    def test_what_is_no_json_object_is_a_protocol_error(self, argument: bytes) -> None:
        with pytest.raises(ProtocolError, match="INFO"):
            parse_info(argument)

    @settings(max_examples=75)
    @given(
        st.one_of(
            st.binary(max_size=30),
            st.dictionaries(
                st.sampled_from([*INFO_FIELDS, "ssl_required", "other"]),
                st.recursive(
                    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
                    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
                    max_leaves=4,
                ),
                max_size=4,
            ).map(lambda document: json.dumps(document).encode()),
        )
    )
    def test_any_argument_is_an_info_or_a_protocol_error(self, argument: bytes) -> None:
        try:
            result = parse_info(argument)
        except ProtocolError:
            return
        for name, kind in INFO_FIELDS.items():
            assert type(getattr(result, name)) is (tuple if kind is list else kind)

    @pytest.mark.parametrize("value", [True, False])
    def test_ssl_required_is_the_old_name_of_tls_required(self, value: bool) -> None:
        assert info({"ssl_required": value}).tls_required is value
        assert info({"ssl_required": not value, "tls_required": value}).tls_required is value

    def test_the_nonce_is_not_shown(self) -> None:
        assert "s3cr3t" not in repr(info({"nonce": "s3cr3t"}))


class TestConnect:
    SECRETS = ("password", "auth_token", "sig", "jwt")

    def test_the_fields_are_those_of_the_protocols_table(self) -> None:
        names = {"pass" if f.name == "password" else f.name for f in fields(ConnectOptions)}
        assert names == set(CONNECT_FIELDS)

    @pytest.mark.parametrize(("name", "kind"), CONNECT_FIELDS.items())
    def test_each_field_is_written_under_its_name(self, name: str, kind: type) -> None:
        value = SAMPLES[kind]
        document = connect_document(ConnectOptions(**{"password" if name == "pass" else name: value}))
        assert document[name] == value

    def test_the_fields_that_must_be_there_always_are(self) -> None:
        document = connect_document(ConnectOptions())
        assert {"verbose", "pedantic", "tls_required", "lang", "version"} <= set(document)
        for name, value in document.items():
            assert type(value) is CONNECT_FIELDS[name]

    def test_what_is_not_given_is_left_out(self) -> None:
        document = connect_document(ConnectOptions())
        assert not {"auth_token", "user", "pass", "name", "sig", "jwt", "nkey"} & set(document)

    def test_headers_no_responders_and_asynchronous_info_are_asked_for(self) -> None:
        document = connect_document(ConnectOptions())
        assert document["headers"] is True
        assert document["no_responders"] is True
        assert document["protocol"] == 1
        assert document["verbose"] is False

    @pytest.mark.parametrize("field", SECRETS)
    def test_secrets_are_sent_but_never_shown(self, field: str) -> None:
        options = ConnectOptions(**{field: "s3cr3t"})
        assert b"s3cr3t" in options.encode()
        assert "s3cr3t" not in repr(options)
        assert "s3cr3t" not in str(options)
        assert "s3cr3t" not in f"{options}"

    @settings(max_examples=50)
    @given(st.text(max_size=12), st.text(max_size=12))
    def test_any_credentials_stay_on_their_line(self, user: str, password: str) -> None:
        options = ConnectOptions(user=user, password=password)
        assert options.encode().count(b"\r\n") == 1
        document = connect_document(options)
        assert (document["user"], document["pass"]) == (user, password)


class TestSubscriptions:
    @settings(max_examples=50)
    @given(subjects, st.one_of(st.none(), subjects), st.integers(0, 2**63 - 1))
    def test_a_subscription_is_one_line_of_its_fields(self, subject: str, queue: str | None, sid: int) -> None:
        expected = (b"SUB", subject.encode(), *([queue.encode()] if queue else []), b"%d" % sid)
        assert read_client_stream(encode_sub(subject, sid, queue)) == [expected]

    @settings(max_examples=75)
    @given(st.text(st.sampled_from("ab.*> \t\r\n"), max_size=5), st.one_of(st.none(), st.text("a \t\r\n.", max_size=3)))
    def test_what_would_not_be_one_field_is_refused(self, subject: str, queue: str | None) -> None:
        if filter_violation(subject) is None and (queue is None or queue_violation(queue) is None):
            assert len(read_client_stream(encode_sub(subject, 1, queue))) == 1
        else:
            with pytest.raises(ValueError, match="subject|queue group"):
                encode_sub(subject, 1, queue)

    @pytest.mark.parametrize(
        ("maximum", "line"), [(None, b"UNSUB 7\r\n"), (1, b"UNSUB 7 1\r\n"), (0, b"UNSUB 7 0\r\n")]
    )
    def test_an_unsubscription_may_have_a_maximum(self, maximum: int | None, line: bytes) -> None:
        assert encode_unsub(7, maximum) == line

    def test_ping_and_pong_are_single_words(self) -> None:
        assert read_client_stream(PING + PONG) == [(b"PING",), (b"PONG",)]


class TestErrors:
    @pytest.mark.parametrize(
        ("argument", "text"),
        [
            (b"'Stale Connection'", "Stale Connection"),
            (b" 'Stale Connection' ", "Stale Connection"),
            (b"Stale Connection", "Stale Connection"),
            (b"", ""),
            (b"''", ""),
            (b"'Permissions Violation for Publish to \"a.b\"'", 'Permissions Violation for Publish to "a.b"'),
            ("'Permissions Violation for Publish to \"é\"'".encode(), 'Permissions Violation for Publish to "é"'),
            (b"'\xff'", "\ufffd"),
        ],
    )
    def test_the_text_of_an_error_is_what_stands_in_the_quotes(self, argument: bytes, text: str) -> None:
        assert error_text(argument) == text

    @pytest.mark.parametrize("change", [str, str.lower, str.upper, str.title])
    def test_case_does_not_matter(self, change: Any) -> None:
        assert not error_kind(change("Permissions Violation for Publish to x")).closes_connection
        assert not error_kind(change("Invalid Subject")).closes_connection
        assert error_kind(change("Stale Connection")).closes_connection
        assert error_kind(change("Permissions Violation for Subscription to x")) is ErrorKind.PERMISSIONS
        assert error_kind(change("Authorization Violation")) is ErrorKind.AUTHORIZATION

    @pytest.mark.parametrize(
        "text",
        [
            "Authorization Violation",
            "Authentication Expired",
            "User Authentication Expired",
            "User Authentication Revoked",
            "Account Authentication Expired",
        ],
    )
    def test_refused_credentials_are_told_from_other_errors(self, text: str) -> None:
        assert error_kind(text) is ErrorKind.AUTHORIZATION
        assert error_kind(text).closes_connection
        assert error_kind(text) is not ErrorKind.PERMISSIONS
        assert not error_kind(text).is_transient

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "Stale Connection",
            "Slow Consumer",
            "Permissions Violation for Publish to x",
            "Authorization Timeout",
            "Authentication Timeout",
        ],
    )
    def test_other_errors_are_not_about_credentials(self, text: str) -> None:
        assert error_kind(text) is not ErrorKind.AUTHORIZATION

    @pytest.mark.parametrize(
        "text",
        [
            "maximum connections exceeded",
            "maximum account active connections exceeded",
            "Connection throttling is active. Please try again later.",
            "Slow Consumer",
        ],
    )
    def test_a_server_that_has_too_much_of_us_is_asked_again_later(self, text: str) -> None:
        assert error_kind(text).closes_connection
        assert error_kind(text).is_transient
        assert error_kind(text).needs_backoff

    def test_a_limit_of_subscriptions_is_met_over_a_connection_that_stays(self) -> None:
        found = error_kind("maximum subscriptions exceeded")
        assert (found.closes_connection, found.is_transient, found.needs_backoff) == (False, True, True)

    @pytest.mark.parametrize("text", ["Stale Connection", "Authentication Timeout", "Something New"])
    def test_what_is_not_known_to_last_is_tried_again_at_once(self, text: str) -> None:
        found = error_kind(text)
        assert (found.closes_connection, found.is_transient, found.needs_backoff) == (True, True, False)

    @pytest.mark.parametrize(
        "text",
        [
            "Maximum Payload Violation",
            "maximum control line exceeded: State 29, max_control_line 4096, Buffer len 0 (snip: a...)",
            "Unknown Protocol Operation",
            "invalid client protocol",
            "no responders requires headers support",
            "Secure Connection - TLS Required",
            "attempted to connect to route port",
        ],
    )
    def test_what_a_server_never_takes_is_not_tried_again(self, text: str) -> None:
        assert error_kind(text).closes_connection
        assert not error_kind(text).is_transient

    @pytest.mark.parametrize("text", ["Something New", "", "Account Connections Exceeded", "Invalid", "Permissions"])
    def test_an_error_that_no_page_knows_closes_the_connection(self, text: str) -> None:
        assert error_kind(text).closes_connection
