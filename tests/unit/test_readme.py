"""The README's table of options is the one in the code."""

from pathlib import Path

from spark_nats.options import OPTIONS

README = Path(__file__).parents[2] / "README.md"


def row(option):
    default = option.shown_default
    default = f"`{default}`" if default and " " not in default else default
    return f"| `{option.name}` | {option.shown_scope} | {default} | {option.meaning} |"


def test_the_readme_lists_every_option_as_the_code_has_it():
    text = README.read_text()
    missing = [line for option in OPTIONS if (line := row(option)) not in text]
    assert not missing, "put these rows into the README's table of options:\n" + "\n".join(missing)


def test_the_readme_lists_no_option_that_does_not_exist():
    table = README.read_text().split("<!-- options")[1].split("\n## ")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert listed == [option.name for option in OPTIONS]
