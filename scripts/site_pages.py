"""What the site has besides docs/: files from elsewhere, pictures in its colours, links to options, checked links."""

import logging
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from posixpath import join, normpath
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from spark_nats.kinds.queries import documented_options

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "quickstart.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
FILES = {"LICENSE": "LICENSE.txt"}
ELSEWHERE = {**PAGES, **FILES}

# GitHub shows the one of these that fits its colours; the site has a button for that, which only it knows.
PICTURE = re.compile(r'<picture>\n<source [^>]*srcset="(.+)">\n<img src="(.+)" alt="(.+)">\n</picture>\n')

# Such as `stream` or `limit` are other things too.
UNMISTAKABLE = {each.option.name for each in documented_options().values() if not each.option.name.islower()}

log = logging.getLogger("mkdocs.hooks.site_pages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add those files, with links that lead to where they are in the site."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_moved((ROOT / source).read_text(), source)))
    for source, name in FILES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Leave out what tests do between the blocks, and show pictures in the colours of the site."""
    markdown = re.sub(r"^<!-- hidden .*?^-->\n*", "", markdown, flags=re.DOTALL | re.MULTILINE)
    markdown = re.sub(r"^<!-- (?:not executed|executed by).*-->\n", "", markdown, flags=re.MULTILINE)
    markdown = PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)\n", markdown)
    return markdown if page.file.generated_by else _moved(markdown, f"docs/{page.file.src_uri}")


def on_page_content(html: str, page: Page, files: Files, **_: object) -> str:
    """Have the names of options lead to their rows, and cells say their columns, which phones show beside them."""
    options = files.get_file_from_path("options.md")
    if options is None:
        raise FileNotFoundError("options.md")
    there = options.url_relative_to(page.file)

    def linked(found: re.Match[str]) -> str:
        name = found[1]
        return f'<a class="option" href="{there}#{name}"><code>{name}</code></a>' if name in UNMISTAKABLE else found[0]

    html = re.sub(r"<a .*?</a>|<pre.*?</pre>|<h\d.*?</h\d>|<code>(\w+)</code>", linked, html, flags=re.DOTALL)
    return re.sub(r"<table>.*?</table>", _titled, html, flags=re.DOTALL)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of links of the built site that lead nowhere."""
    site = Path(config.site_dir)
    pages = {page.relative_to(site).as_posix(): _Page(page.read_text()) for page in site.rglob("*.html")}
    for name, page in pages.items():
        for link in page.links if name != "404.html" else ():  # which has links that begin with where the site is
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = normpath(join("/", name, "..", unquote(parts.path))).lstrip("/") if parts.path else name
            path = join(path, "index.html") if (site / path).is_dir() else path
            if not (site / path).is_file():
                log.warning("%s: there is no %s", name, link)
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                log.warning("%s: there is no anchor %s", name, link)


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where it leads, and what it is called."""
        found = dict(attrs)
        self.links += [link for key in ("href", "src") if (link := found.get(key)) is not None]
        if name := found.get("id"):
            self.anchors.add(name)


def _titled(table: re.Match[str]) -> str:
    titles = [re.sub("<.*?>", "", title) for title in re.findall(r"<th.*?>(.*?)</th>", table[0], re.DOTALL)]

    def row(found: re.Match[str]) -> str:
        of_cells: Iterator[str] = iter(titles)

        def cell(start: re.Match[str]) -> str:
            title = next(of_cells, "")
            return f'<td data-title="{title}"' if title else start[0]

        return re.sub(r"<td(?=[ >])", cell, found[0])

    return re.sub(r"<tr>.*?</tr>", row, table[0], flags=re.DOTALL)


def _moved(text: str, source: str) -> str:
    """Have the links of a file of the project lead to pages of the site."""

    def link(found: re.Match[str]) -> str:
        there = normpath(str(Path(source).parent / found[1]))
        return f"]({ELSEWHERE.get(there, there.removeprefix('docs/'))}{found[2] or ''})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, text)
