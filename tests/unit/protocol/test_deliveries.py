"""The metadata in the reply subject of a JetStream delivery."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.errors import ProtocolError
from spark_nats.protocol.deliveries import Deliveries, Delivery
from spark_nats.protocol.documents import quoted
from tests.unit.strategies import tokens

NUMBERS = (1, 42, 7, 1700000000123456789, 3)
SHORT = "$JS.ACK.ORDERS.c1.1.42.7.1700000000123456789.3"
LONG = "$JS.ACK.hub.ACCHASH.ORDERS.c1.1.42.7.1700000000123456789.3"
LONG_WITH_TOKEN = LONG + ".rAnD0m"
DELIVERY = Delivery(stream_sequence=42, consumer_sequence=7, timestamp=1700000000123456789, pending=3)

counts = st.one_of(st.integers(0, 999), st.integers(0, 2**63 - 1), st.integers(10**17, 10**18 + 9))
prefixes = st.one_of(
    st.tuples(tokens, tokens).map(lambda names: ("$JS", "ACK", *names)),
    st.tuples(st.one_of(st.just("_"), tokens), tokens, tokens, tokens).map(lambda names: ("$JS", "ACK", *names)),
)


@st.composite
def acknowledgements(draw: st.DrawFn) -> tuple[str, Delivery]:
    prefix = draw(prefixes)
    delivered, *rest = draw(st.tuples(counts, counts, counts, counts, counts))
    token = [draw(tokens)] if len(prefix) == 6 and draw(st.booleans()) else []
    return ".".join([*prefix, str(delivered), *map(str, rest), *token]), Delivery(*rest)


def replies(*subjects: str | bytes) -> pa.BinaryArray:
    return pa.array([s.encode() if isinstance(s, str) else s for s in subjects], pa.binary())


def read_all(column: pa.BinaryArray) -> None:
    """Ask for everything; one of the questions must be refused when a row is no acknowledgement."""
    deliveries = Deliveries(column)
    deliveries.stream_sequences()
    deliveries.timestamps()


class TestAcknowledgements:
    @pytest.mark.parametrize("reply", [SHORT, LONG, LONG_WITH_TOKEN], ids=["short", "long", "long-with-token"])
    def test_both_forms_are_parsed(self, reply: str) -> None:
        deliveries = Deliveries(replies(reply))
        assert deliveries.at(0) == DELIVERY
        assert deliveries.stream_sequences().tolist() == [42]
        assert deliveries.timestamps().tolist() == [1700000000123456789]

    @settings(max_examples=100)
    @given(st.lists(acknowledgements(), max_size=8), st.integers(0, 2))
    def test_a_column_may_mix_forms_names_and_lengths(self, rows: list[tuple[str, Delivery]], skip: int) -> None:
        column = replies(*[reply for reply, _ in rows]).slice(skip)
        expected = [delivery for _, delivery in rows[skip:]]
        deliveries = Deliveries(column)
        assert len(deliveries) == len(expected)
        assert deliveries.stream_sequences().tolist() == [d.stream_sequence for d in expected]
        assert deliveries.timestamps().tolist() == [d.timestamp for d in expected]
        assert [deliveries.at(i) for i in range(len(expected))] == expected

    def test_numbers_of_nineteen_digits_are_parsed(self) -> None:
        largest = 2**63 - 1
        deliveries = Deliveries(replies(f"$JS.ACK.S.C.{largest}.{largest}.{largest}.{largest}.{largest}"))
        assert deliveries.at(0) == Delivery(largest, largest, largest, largest)
        assert deliveries.stream_sequences().tolist() == [largest]

    def test_the_head_is_the_first_deliveries(self) -> None:
        rows = [f"$JS.ACK.S.C.1.{i}.{i}.{1000 + i}.0" for i in range(5)]
        head = Deliveries(replies(*rows)).take(slice(2))
        assert len(head) == 2
        assert head.stream_sequences().tolist() == [0, 1]
        assert head.timestamps().tolist() == [1000, 1001]
        assert head.take(slice(0)).stream_sequences().tolist() == []

    def test_no_deliveries_are_no_rows(self) -> None:
        deliveries = Deliveries(replies())
        assert len(deliveries) == 0
        assert deliveries.stream_sequences().tolist() == []
        assert deliveries.timestamps().tolist() == []


class TestOtherSubjects:
    @pytest.mark.parametrize("before", [[], [SHORT], [LONG_WITH_TOKEN, SHORT]], ids=["alone", "after-one", "after-two"])
    @pytest.mark.parametrize(
        "reply",
        [
            pytest.param("", id="empty"),
            pytest.param("_INBOX.abc.1", id="inbox"),
            pytest.param("$JS.ACK.S.C.1.2.3.4", id="one-token-less"),
            pytest.param("$JS.ACK.D.S.C.1.2.3.4.5", id="ten-tokens"),
            pytest.param(LONG_WITH_TOKEN + ".more", id="thirteen-tokens"),
            pytest.param("........", id="dots-alone"),
            pytest.param("a.b.c.d.1.2.3.4.5", id="nine-tokens-of-something-else"),
            pytest.param("$JS.NAK.S.C.1.2.3.4.5", id="another-operation"),
            pytest.param("$JS.ACKS.C.c.1.2.3.4.5", id="prefix-run-together"),
            pytest.param("x$JS.ACK.S.C.1.2.3.4.5", id="prefix-not-first"),
            pytest.param("$JS.ACK.S.C.1.x.3.4.5", id="stream-sequence-in-words"),
            pytest.param("$JS.ACK.S.C.1..3.4.5", id="stream-sequence-empty"),
            pytest.param("$JS.ACK.S.C.1.-2.3.4.5", id="stream-sequence-negative"),
            pytest.param("$JS.ACK.S.C.1.+2.3.4.5", id="stream-sequence-signed"),
            pytest.param("$JS.ACK.S.C.1.9223372036854775808.3.4.5", id="stream-sequence-of-two-to-the-63rd"),
            pytest.param("$JS.ACK.S.C.1.10000000000000000000.3.4.5", id="stream-sequence-of-twenty-digits"),
            pytest.param("$JS.ACK.S.C.1.2.3.x.5", id="time-in-words"),
            pytest.param("$JS.ACK.S.C.1.2.3..5", id="time-empty"),
            pytest.param("$JS.ACK.D.H.S.C.1.x.3.4.5", id="long-form-stream-sequence-in-words"),
            pytest.param("$JS.ACK.D.H.S.C.1.2.3.x.5.token", id="long-form-time-in-words"),
            pytest.param(b"$JS.ACK.S.C.1.\xff.3.4.5", id="no-utf8"),
        ],
    )
    def test_a_reply_that_is_no_acknowledgement_is_a_protocol_error(
        self, reply: str | bytes, before: list[str]
    ) -> None:
        with pytest.raises(ProtocolError, match="not a JetStream acknowledgement subject"):
            read_all(replies(*before, reply, *before))

    @pytest.mark.parametrize(
        "token", ["", "x", "-2", "+2", " 2", "2 ", "1_0", "\u0661", "9" * 5000], ids=lambda t: repr(t[:9])
    )
    @pytest.mark.parametrize("place", range(1, 5))
    def test_a_single_delivery_is_read_as_strictly_as_a_column(self, place: int, token: str) -> None:
        numbers = [str(number) for number in NUMBERS]
        numbers[place] = token
        deliveries = Deliveries(replies(SHORT, "$JS.ACK.S.C." + ".".join(numbers)))
        assert deliveries.at(0) == DELIVERY
        with pytest.raises(ProtocolError, match="not a JetStream acknowledgement subject"):
            deliveries.at(1)

    def test_the_error_shows_the_first_that_is_none_and_not_all_of_it(self) -> None:
        with pytest.raises(ProtocolError, match="_INBOX") as caught:
            read_all(replies(SHORT, "_INBOX." + "x" * 5000, "other"))
        assert len(str(caught.value)) < 250

    @settings(max_examples=75)
    @given(
        st.lists(
            st.one_of(
                st.binary(max_size=30),
                st.lists(st.sampled_from(["$JS", "ACK", "1", "x", ""]), max_size=13).map(
                    lambda t: ".".join(t).encode()
                ),
            ),
            max_size=4,
        )
    )
    def test_any_bytes_are_an_acknowledgement_or_a_protocol_error(self, rows: list[bytes]) -> None:
        try:
            read_all(replies(*rows))
        except ProtocolError:
            return
        assert all(row.startswith(b"$JS.ACK.") and row.count(b".") in (8, 10, 11) for row in rows)


CONSUMERS = st.tuples(st.sampled_from(["ORDERS", "S", "ORDERS2"]), st.sampled_from(["spark-nats-1", "spark-nats-22"]))


@given(
    CONSUMERS, st.lists(st.tuples(CONSUMERS, st.sampled_from(["", "hub.HASH."]), st.integers(1, 10**12)), max_size=6)
)
@example(("ORDERS", "spark-nats-1"), [(("ORDERS2", "spark-nats-22"), "hub.HASH.", 10**12)])
def test_a_delivery_of_another_consumer_is_named(
    of: tuple[str, str], rows: list[tuple[tuple[str, str], str, int]]
) -> None:
    subjects = [f"$JS.ACK.{before}{'.'.join(names)}.1.{n}.{n}.1700000000.0" for names, before, n in rows]
    others = [quoted(subject.encode()) for subject, (names, _, _) in zip(subjects, rows, strict=True) if names != of]
    assert Deliveries(replies(*subjects)).find_reply_of_other(*of) == (others[0] if others else None)
