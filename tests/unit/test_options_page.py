"""The table of options in docs/options.md is the one in the code."""

from scripts.options_page import PAGE, with_table
from spark_nats.options import OPTIONS


def test_the_page_has_every_option_as_the_code_has_it():
    page = PAGE.read_text()
    assert page == with_table(page), "make docs writes the table"
    assert all(f"| `{option.name}` |" in page for option in OPTIONS)
