"""Generated orders and their revenue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ROWS_AT_ONCE = 50_000

_COUNTRIES = {
    **dict.fromkeys(("DE", "ES", "FR", "IT", "NL", "PL"), "eu"),
    **dict.fromkeys(("CA", "MX", "US"), "na"),
    **dict.fromkeys(("AR", "BR", "CL"), "latam"),
    **dict.fromkeys(("AU", "IN", "JP", "KR"), "apac"),
}
_PRODUCTS = {  # prices in cents, so that sums are exact
    "coffee-beans": 1450,
    "teapot": 3295,
    "espresso-machine": 34900,
    "grinder": 8999,
    "mug": 1199,
    "filter-papers": 425,
    "kettle": 5950,
    "milk-frother": 2799,
}
_EVENTS = {"placed": 0.88, "cancelled": 0.08, "returned": 0.04}
_EXPRESS = 0.15  # share of orders with the header ``Priority``
_OPENING = np.datetime64("2026-11-02T08:00", "ms")
_MINUTES = 60
_LATENESS = 5_000  # milliseconds by which the times of events may be out of order

_REGIONS = sorted(set(_COUNTRIES.values()))
_ORDER = '{"order":"|","customer":"C|","country":"|","product":"|","quantity":|,"unit_price":|,"time":"|Z"}'

SCHEMA = pa.schema({"sequence": pa.int64(), "subject": pa.string(), "payload": pa.string(), "priority": pa.string()})
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Revenue:
    """The revenue of the orders of one region and minute."""

    orders: int  # number of order events
    express: int  # number of those with the header ``Priority``
    cents: int  # placed orders less cancelled and returned ones

    def __str__(self) -> str:
        return f"{self.orders} orders, {self.express} express, revenue {Decimal(self.cents).scaleb(-2)}"


Results = dict[tuple[str, str], Revenue]
"""The revenue of each region and minute."""


class Orders:
    """Generates order events, the same ones for the same seed, and adds up their revenue.

    Args:
        count: number of events.
        prefix: first token of their subjects, ``<prefix>.<region>.<event>``.
        seed: seed of the random numbers.
    """

    def __init__(self, count: int, prefix: str, seed: int = 20) -> None:
        self._count = count
        self._prefix = prefix
        self._random = np.random.default_rng(seed)
        self._sums = np.zeros((3, len(_REGIONS), _MINUTES + 1), np.int64)

    def generate_batches(self) -> Iterator[pa.RecordBatch]:
        """Generate the events, as columns of :data:`SCHEMA`; ``sequence`` is counted from 1."""
        for first in range(0, self._count, _ROWS_AT_ONCE):
            yield self._generate_batch(np.arange(first, min(first + _ROWS_AT_ONCE, self._count)))

    def revenue(self) -> Results:
        """Return the revenue of the events generated so far, by region and minute."""
        minutes = np.datetime_as_string(_OPENING + np.arange(_MINUTES + 1) * np.timedelta64(1, "m"), "m")
        orders, express, cents = self._sums
        return {
            (_REGIONS[r], str(minutes[m])): Revenue(int(orders[r, m]), int(express[r, m]), int(cents[r, m]))
            for r, m in zip(*np.nonzero(orders), strict=True)
        }

    def _generate_batch(self, numbers: Integers) -> pa.RecordBatch:
        random, rows = self._random, len(numbers)
        country = random.integers(0, len(_COUNTRIES), rows)
        region = np.array([_REGIONS.index(name) for name in _COUNTRIES.values()])[country]
        product = random.integers(0, len(_PRODUCTS), rows)
        price = np.array(list(_PRODUCTS.values()))[product]
        quantity = random.geometric(0.5, rows)
        event = random.choice(len(_EVENTS), rows, p=list(_EVENTS.values()))
        express = random.random(rows) < _EXPRESS
        elapsed = numbers * (_MINUTES * 60_000) // self._count + random.integers(0, _LATENESS, rows)
        amount = np.where(event == 0, price, -price) * quantity
        for sums, values in zip(self._sums, (np.ones_like(amount), express.astype(np.int64), amount), strict=True):
            np.add.at(sums, (region, elapsed // 60_000), values)
        values_of_order = (
            _padded(numbers + 1),
            _padded(random.zipf(1.3, rows) % 100_000),
            _pick_names(_COUNTRIES, country),
            _pick_names(_PRODUCTS, product),
            pa.array(quantity).cast(pa.string()),
            _pick_names([f"{cents / 100:.2f}" for cents in _PRODUCTS.values()], product),
            pc.strftime(pa.array(_OPENING + elapsed), "%Y-%m-%dT%H:%M:%S"),
        )
        first, *between = _ORDER.split("|")
        pieces = [piece for pair in zip(values_of_order, between, strict=True) for piece in pair]
        payloads = pc.binary_join_element_wise(first, *pieces, "")
        subjects = pc.binary_join_element_wise(
            self._prefix, _pick_names(_REGIONS, region), _pick_names(_EVENTS, event), "."
        )
        priorities = pc.if_else(pa.array(express), pa.scalar("express"), pa.scalar(None, pa.string()))
        return pa.record_batch([pa.array(numbers + 1), subjects, payloads, priorities], SCHEMA)


def _pick_names(names: Iterable[str], index: Integers) -> pa.Array:
    return pa.array(list(names)).take(pa.array(index))


def _padded(numbers: Integers) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 6, "0")
