"""What docs/feature-pairs.md says about pairs of features is what servers do."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.pairs import PAGE, VERSIONS, matrix, pairs_of, play


@pytest.mark.long("tests/pairs.py", "docs/feature-pairs.md", "spark_nats/kinds/streams/write/*")
def test_the_page_about_pairs_of_features_says_what_servers_do() -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        results = {version: pool.submit(play, version, list(pairs_of(version))) for version in VERSIONS}
        found = {version: result.result() for version, result in results.items()}
    assert matrix(found) in PAGE.read_text()
