"""The tables of options in docs/options.md are those of the code."""

import re
from collections import Counter

from scripts.options_page import PAGE, with_tables
from spark_nats.kinds.queries import documented_options, options_by_section


def test_the_page_has_every_option_as_the_code_has_it():
    page = PAGE.read_text()
    assert page == with_tables(page), "make docs writes the tables"


def test_every_option_stands_in_one_section():
    shown = Counter(each.option.name for options in options_by_section().values() for each in options)
    assert shown == dict.fromkeys([each.option.name for each in documented_options().values()], 1)


def test_every_section_has_a_heading_and_a_table():
    page = PAGE.read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert sorted(headings) == sorted(options_by_section())
    assert re.findall(r"^<!-- options: (.+) -->$", page, re.MULTILINE) == headings


def test_every_option_can_be_linked_to_by_its_name():
    page = PAGE.read_text()
    headings = [re.sub(r"[^a-z0-9]+", "-", heading.lower()) for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)]
    anchors = re.findall(r'<a id="(\w+)"></a>', page)
    assert sorted(anchors) == sorted(each.option.name for each in documented_options().values())
    assert not {anchor.lower() for anchor in anchors} & set(headings), "a heading has the anchor of an option"
