"""One module per kind of fixture; see CONTRIBUTING.md for how the tests are organised."""

import pytest

pytest_plugins = [
    "tests.repeatable",
    "tests.servers",
    "tests.nats_py",
    "tests.spark_session",
    "tests.long",
    "tests.needs",
    "tests.closing",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts Spark, and say which tests share a worker."""
    order = {"spark": 0, "spark_environment": 1, "pages": 2}  # what takes longest begins first
    pages = not config.getoption("without_long")
    groups = {item: _group(item, pages) for item in items}
    for item, group in groups.items():
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(group))
        if group in order:
            item.add_marker(pytest.mark.spark)
    if hasattr(config, "workerinput"):  # of pytest-xdist
        items.sort(key=lambda item: order.get(groups[item], len(order)))


def _group(item: pytest.Item, pages: bool) -> str:
    """Tests that share the Spark session, those that start a Spark of their own, and the others by their modules.

    The pages of the documentation take as long as many tests, so whichever worker is free first runs them, unless there
    is only the README.
    """
    fixtures = getattr(item, "fixturenames", ())
    if pages and "spark" in fixtures and item.path.stem == "test_docs":
        return "pages"
    if "spark" in fixtures or "spark_application" in fixtures:
        return "spark"
    return "spark_environment" if "spark_environment" in fixtures else item.path.stem
