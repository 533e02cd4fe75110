"""One module per kind of fixture; see CONTRIBUTING.md for how the tests are organised."""

import pytest

pytest_plugins = ["tests.servers", "tests.nats_py", "tests.spark_session"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Spark and what is quick, and say which tests share a worker."""
    for item in items:
        if "spark_environment" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        spark = item.get_closest_marker("spark")
        if not spark and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.quick)
        # All that use Spark share one session, and the tests of a module its fixtures.
        item.add_marker(pytest.mark.xdist_group("spark" if spark else item.path.stem))
