"""One module per kind of fixture; see CONTRIBUTING.md for how the tests are organised."""

pytest_plugins = ["tests.servers", "tests.nats_py", "tests.spark_session"]
