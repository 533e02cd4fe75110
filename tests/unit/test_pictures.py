"""The pictures of the documentation are those that their script draws, and pages show them."""

import re

from scripts.pictures import FOLDER, drawn
from tests.pages import PAGES


def test_the_pictures_are_those_that_the_script_draws():
    there = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert there == dict(drawn()), "python -m scripts.pictures draws them"


def test_pages_show_each_picture_with_words_for_those_who_do_not_see_it():
    shown = re.findall(
        r'^<picture>\n<source media="\(prefers-color-scheme: dark\)" srcset="pictures/(\w+)-dark.svg">\n'
        r'<img src="pictures/(\w+)-light.svg" alt="([^"]{80,})">\n</picture>\n',
        "\n".join(page.read_text() for page in PAGES),
        re.MULTILINE,
    )
    assert all(dark == light for dark, light, _ in shown)
    drawings = {name.removesuffix("-light.svg") for name, _ in drawn() if name.endswith("-light.svg")}
    assert {light for _, light, _ in shown} == drawings
