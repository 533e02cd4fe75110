"""What the site has besides docs/: the README is its first page, and files that lie elsewhere are pages too."""

import re
from pathlib import Path
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
FILES = {"LICENSE": "LICENSE.txt"}
ELSEWHERE = {**PAGES, **FILES}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add those files, with links that lead to where they are in the site."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_moved((ROOT / source).read_text(), source)))
    for source, name in FILES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Leave out what tests do between the blocks."""
    markdown = re.sub(r"^<!-- hidden .*?^-->\n*", "", markdown, flags=re.DOTALL | re.MULTILINE)
    markdown = re.sub(r"^<!-- (?:not executed|executed by).*-->\n", "", markdown, flags=re.MULTILINE)
    return markdown if page.file.generated_by else _moved(markdown, f"docs/{page.file.src_uri}")


def _moved(text: str, source: str) -> str:
    """Have the links of a file of the project lead to pages of the site."""

    def link(found: re.Match[str]) -> str:
        there = normpath(str(Path(source).parent / found[1]))
        return f"]({ELSEWHERE.get(there, there.removeprefix('docs/'))}{found[2] or ''})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, text)
