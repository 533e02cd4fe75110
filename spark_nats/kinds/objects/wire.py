"""Object stores on the wire (ADR-20): a bucket is a stream, an object is chunks and one message that describes it.

The description is JSON on a subject that is made from the object's name; the chunks follow each other on a subject of
their own. ADR-20 calls an object store a bucket, and so does this module.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_nats.protocol import documents
from spark_nats.protocol.keyvalue import STORE_STREAM
from spark_nats.protocol.stream_configs import RequestedConfig
from spark_nats.protocol.subjects import name_violation

_SUBJECTS = "$O"  # first token of the subjects of all buckets
_DIGEST = re.compile(r"SHA-256=([-_A-Za-z0-9]+)=*", re.IGNORECASE)
CHUNK_BYTES = 128 * 1024  # bytes of each chunk but the last
MAX_SIZE = 2**63 - 1  # what a column can hold


def stream_of_store(bucket: str) -> str:
    """Return the name of a bucket's stream."""
    return f"{STORE_STREAM}{bucket}"


def description_subject(bucket: str, name: str) -> str:
    """Return the subject of an object's description."""
    return f"{descriptions_filter(bucket).removesuffix('>')}{base64.urlsafe_b64encode(name.encode()).decode()}"


def descriptions_filter(bucket: str) -> str:
    """Return the filter for the descriptions of a bucket's objects."""
    return f"{_SUBJECTS}.{bucket}.M.>"


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of an object's chunks.

    It is the same with another API prefix: servers map ``$KV.>`` for a domain, but not ``$O.>``, which reaches another
    domain like any other subject.

    Args:
        bucket: name of the bucket.
        nuid: id of the object's version.
    """
    return f"{_SUBJECTS}.{bucket}.C.{nuid}"


def object_name_of(subject: str) -> str:
    """Return the name of the object that is described on a subject; the subject itself when it has no name."""
    token = subject.rpartition(".")[2]
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        return subject


def digest_of(content: bytes) -> str:
    """Return the digest of an object's content, as in its description."""
    return f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()}"


def is_same_digest(one: str, other: str) -> bool:
    """Tell whether two texts are the same SHA-256 digest; some clients leave out the padding, or write "sha-256"."""
    first, second = _DIGEST.fullmatch(one), _DIGEST.fullmatch(other)
    return first is not None and second is not None and first[1] == second[1]


def chunks_of(content: bytes, size: int = CHUNK_BYTES) -> list[bytes]:
    """Return the chunks of an object's content; empty content has none."""
    return [content[start : start + size] for start in range(0, len(content), size)]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The description of an object.

    Attributes:
        name: its name.
        nuid: last token of its chunks' subject; empty when it has none.
        size: bytes of its content.
        chunks: number of its chunks.
        digest: digest of its content; empty when it is not given.
        description: in words; None when there is none.
        headers: its headers, with all values of each.
        metadata: its metadata.
        link: bucket and name of the target of a link, whose name is None for a whole bucket; None when it is no link.
        deleted: whether it is deleted.
    """

    name: str
    nuid: str = ""
    size: int = 0
    chunks: int = 0
    digest: str = ""
    description: str | None = None
    headers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    link: tuple[str, str | None] | None = None
    deleted: bool = False


def parse_description(payload: bytes) -> ObjectInfo:
    """Parse the description of an object.

    Raises:
        ValueError: the payload is no description.
    """
    document = documents.parse_limited_object(payload)
    link = documents.value_or_none_at(document, "options", "link")
    headers, metadata = documents.object_at(document, "headers"), documents.object_at(document, "metadata")
    info = ObjectInfo(
        name=documents.string_at(document, "name"),
        nuid=documents.text_or_none_at(document, "nuid") or "",
        size=_number(document, "size"),
        chunks=_number(document, "chunks"),
        digest=documents.text_or_none_at(document, "digest") or "",
        description=documents.text_or_none_at(document, "description"),
        headers={
            name: (value,) if isinstance(value := headers[name], str) else documents.strings_at(headers, name)
            for name in headers
        },
        metadata={name: documents.string_at(metadata, name) for name in metadata},
        link=None if link is None else (documents.string_at(link, "bucket"), documents.text_or_none_at(link, "name")),
        deleted="deleted" in document and documents.boolean_at(document, "deleted"),
    )
    if info.nuid and (violation := name_violation(info.nuid)):  # it becomes part of a subject
        raise ValueError(f"'nuid' {violation}")
    if info.link and (violation := name_violation(info.link[0])):
        raise ValueError(f"'options.link.bucket' {violation}")
    if info.chunks and not (info.nuid or info.deleted):
        raise ValueError("it has chunks and no 'nuid'")
    return info


def encode_description(info: ObjectInfo, bucket: str, chunk_bytes: int) -> bytes:
    """Encode the description of an object of a bucket, with chunks of ``chunk_bytes`` bytes."""
    headers = {name: list(values) for name, values in info.headers.items()}
    some = {"headers": headers or None, "metadata": info.metadata or None, "deleted": info.deleted or None}
    given = {"name": info.name, "description": info.description, **some}
    document: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options: dict[str, Any] = {"max_chunk_size": chunk_bytes}
    if info.link is not None:
        store, name = info.link
        options["link"] = {"bucket": store} if name is None else {"bucket": store, "name": name}
    document |= {"options": options, "bucket": bucket}
    document |= {name: getattr(info, name) for name in ("nuid", "size", "chunks", "digest")}
    return json.dumps(document, ensure_ascii=False).encode()


def store_config(bucket: str, requested: Mapping[str, Any]) -> RequestedConfig:
    """Return the configuration of a bucket's stream.

    Args:
        bucket: its name.
        requested: settings other than the defaults: ``max_age`` in nanoseconds, ``max_bytes``, ``replicas``,
            ``storage``, ``compression``, ``description``.
    """
    config = {
        "name": stream_of_store(bucket),
        "subjects": [chunk_subject(bucket, ">"), descriptions_filter(bucket)],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }
    return RequestedConfig.of_bucket(config, requested)


def _number(document: Any, name: str) -> int:
    number = documents.integer_at(document, name) if documents.value_or_none_at(document, name) is not None else 0
    if number > MAX_SIZE:
        raise ValueError(f"{name!r} is above {MAX_SIZE}")
    return number
