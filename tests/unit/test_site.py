"""The site that `make docs` builds: nothing in it leads nowhere, and it needs nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

pytestmark = pytest.mark.long("mkdocs.yml", "docs/*", "README.md", "scripts/site_pages.py", "Makefile")

SOURCES = ["mkdocs.yml", "scripts/site_pages.py", "LICENSE", "benchmarks/README.md"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What the site is made of, to change."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for source in [*SOURCES, *(page.name for page in ROOT.glob("*.md"))]:
        (tmp_path / source).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / source)
    return tmp_path


def build(project: Path) -> subprocess.CompletedProcess[str]:
    """Build it as `make docs` does."""
    planned = subprocess.run(["make", "--dry-run", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    ((options,),) = [re.findall(r"bin/mkdocs (.*)$", planned.stdout, re.MULTILINE)]
    command = [sys.executable, "-m", "mkdocs", *options.split()]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def test_the_site_is_built_and_needs_nothing_from_elsewhere(project: Path) -> None:
    built = build(project)
    assert built.returncode == 0, built.stderr
    pages = [page.read_text() for page in (project / "build" / "site").rglob("*.html")]
    assert len(pages) > 25
    for page in pages:
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]*"', page)
        assert not re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//[^"]*"', page)


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("[x](nowhere.md)", "nowhere.md"),
        ("[x](options.md#nonesuch)", "#nonesuch"),
        ('<a href="../options/#nonesuch">x</a>', "../options/#nonesuch"),
        ("![x](pictures/nowhere.svg)", "pictures/nowhere.svg"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(project: Path, link: str, said: str) -> None:
    page = project / "docs" / "core.md"
    page.write_text(page.read_text() + f"\n{link}\n")
    built = build(project)
    assert built.returncode != 0
    assert said in built.stderr


def test_names_of_options_lead_to_their_rows(project: Path) -> None:
    assert build(project).returncode == 0
    page = (project / "build" / "site" / "tuning" / "index.html").read_text()
    assert '<a class="option" href="../options/#maxInFlight"><code>maxInFlight</code></a>' in page
