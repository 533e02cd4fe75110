"""The encoder: Arrow columns in, the bytes of PUB and HPUB for the whole batch out.

One ``binary_join_element_wise`` joins the constant pieces of the line, the columns and the sizes; the data buffer of
its result is the wire. Nothing is validated here: the columns must have passed
:func:`~spark_nats.protocol.subject_columns.find_subject_violation` and
:func:`~spark_nats.protocol.headers.find_header_violation`, because a CR LF in them would begin another command.

The benchmark's rows "codec: encode PUB" and "codec: encode HPUB" guard the cost.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.protocol.bytecolumns import byte_strings, bytes_and_offsets_of

_BINARY = pa.binary()
_PUB, _HPUB, _NOTHING, _BLANK, _CRLF = byte_strings([b"PUB ", b"HPUB ", b"", b" ", b"\r\n"])


def encode_messages(
    subjects: pa.Array, payloads: pa.Array, replies: pa.Array | None = None, headers: pa.Array | None = None
) -> pa.Buffer:
    """Return the bytes that publish every row, in order.

    Args:
        subjects: string column without null.
        payloads: string or binary column without null.
        replies: string column; null where a message has no reply subject.
        headers: binary column of header blocks; null where a message has none (it is then sent with PUB).

    Raises:
        pyarrow.ArrowCapacityError: the result would have 2 GiB or more; encode fewer rows at once.
    """
    payloads = payloads.cast(_BINARY)
    subject_and_reply = [subjects.cast(_BINARY), _BLANK]
    if replies is not None:
        replies = replies.cast(_BINARY)  # a dictionary may have nulls that its null_count does not count
        reply = [replies, _BLANK]
        if replies.null_count:
            reply = [pc.fill_null(pc.binary_join_element_wise(*reply, _NOTHING), _NOTHING)]
        subject_and_reply += reply
    size = pc.binary_length(payloads)
    if headers is None:
        pieces = [_PUB, *subject_and_reply, _text(size), _CRLF, payloads, _CRLF]
    else:
        operation, block = _HPUB, headers.cast(_BINARY)
        header_size = pc.binary_length(block)
        sizes = pc.binary_join_element_wise(_text(header_size), _text(pc.add(size, header_size)), _BLANK)
        if block.null_count:
            present = block.is_valid()
            operation = pc.if_else(present, _HPUB, _PUB)
            sizes = pc.if_else(present, sizes, _text(size))
            block = pc.fill_null(block, _NOTHING)
        pieces = [operation, *subject_and_reply, sizes, _CRLF, block, payloads, _CRLF]
    wire, _ = bytes_and_offsets_of(pc.binary_join_element_wise(*pieces, _NOTHING))
    return pa.py_buffer(wire)


def encode_message(subject: str, payload: bytes, reply: str | None = None, header: bytes | None = None) -> bytes:
    """Return the bytes that publish one message, such as a request of the client, by the same rules as for columns."""
    to = f"{subject} {reply}" if reply else subject
    if header is None:
        return b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(payload), payload)
    total = len(header) + len(payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to.encode(), len(header), total, header, payload)


def _text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(_BINARY)
