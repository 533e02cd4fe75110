"""Which message ids a stream says it knows, where a stream of its name in another domain answers too."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_nats.client import connect
from spark_nats.jetstream.reading.stored import ask_which_ids_are_known
from tests.connections import options_for
from tests.scripted_server import Peer, scripted_server

KNOWS = b'{"stream":"ORDERS","domain":"hub","seq":1,"duplicate":true}'
LACKS = b'{"error":{"code":400,"err_code":10070,"description":"wrong last msg ID: "},"stream":"ORDERS","seq":0}'


@pytest.mark.parametrize("answers", [(KNOWS, LACKS), (LACKS, KNOWS)], ids=["first", "last"])
def test_an_id_that_the_stream_knows_is_known_though_its_answer_comes(answers: tuple[bytes, bytes]) -> None:
    def script(peer: Peer) -> None:
        for request in peer.requests():
            for answer in answers:
                peer.answer(request, answer)  # both are sent, and received, together

    with scripted_server(script) as url, connect(options_for(url)) as connection:
        assert ask_which_ids_are_known(
            connection, "ORDERS", "hub", pa.array(["orders.a"] * 2), pa.array(["a", "b"])
        ).all()
