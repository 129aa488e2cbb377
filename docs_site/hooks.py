"""Hooks of MkDocs: pages of the reference that are made from the code, `llms.txt`, and links that leave the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site import reference

ROOT = Path(__file__).parents[1]
README = "README.md"
OUTSIDE = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md", "benchmarks/README.md": "benchmarks.md"}
"""Files of the repository that are pages, too."""
PICTURES = ("benchmarks/peers.svg",)
_STATES = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_WORD = re.compile(r"<code>([^\s<]{1,24})</code>")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^(?:#|\||!|<|- |\d\.)")
_SENTENCE = re.compile(r".+?[.?](?= |$)")
_ELSEWHERE = re.compile(r"[a-z]+:|#|/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in reference.pages():
        files.append(File.generated(config, path, content=text))
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    for path in PICTURES:
        files.append(File.generated(config, Path(path).name, abs_src_path=str(ROOT / path)))
    parts = [f"# {config.site_name}", f"> {config.site_description}"]
    for section in config.nav or []:
        [(name, entries)] = section.items()
        parts += [f"## {name}", "\n".join(_listed(title, path, files) for title, path in _titles(entries))]
    about = "\n\n".join(parts) + "\n"
    files.append(File.generated(config, "llms.txt", content=about))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """A link to a file of the repository that is no page becomes the file's name: the site stands alone.

    A diagram of states becomes a table, because the site loads no program that could draw it.
    """
    docs, here = Path(config.docs_dir), page.file.src_uri
    text = _STATES.sub(_table, markdown)
    if here == "index.md":
        return text + "\n" + _links(promises(), ROOT / README, here, docs)
    source = next((ROOT / path for path, made in OUTSIDE.items() if made == here), docs / here)
    return _links(text, source, here, docs)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """An option such as --dsn is not broken after its hyphens."""
    return _WORD.sub(r'<code class="word">\1</code>', html)


def promises() -> str:
    """The section of the README: it stands in one place."""
    [section] = re.findall(r"^## Promises\n.*?(?=^## )", (ROOT / README).read_text(), re.DOTALL | re.MULTILINE)
    return str(section)


def _links(text: str, source: Path, here: str, docs: Path) -> str:
    """The links of a page of the site, whose text was written for the folder of its source."""
    pages = {ROOT / README: "index.md", **{ROOT / path: made for path, made in OUTSIDE.items()}}

    def led(link: re.Match[str]) -> str:
        said, (path, mark, anchor) = link[1], link[2].partition("#")
        if _ELSEWHERE.match(link[2]):
            return link[0]
        target = (source.parent / path).resolve()
        made = pages.get(target) or (str(target.relative_to(docs)) if target.is_relative_to(docs) else None)
        if made:
            return f"[{said}]({os.path.relpath(made, Path(here).parent)}{mark}{anchor})"
        name = target.relative_to(ROOT)
        return f"`{said}`" if said == str(name.parent) else f"{said} (`{name}`)"

    code = _CODE.findall(text)
    around = _CODE.split(text)
    return "".join(_LINK.sub(led, each) + block for each, block in zip(around, [*code, ""], strict=True))


def _listed(title: str, path: str, files: Files) -> str:
    file = files.get_file_from_path(path)
    assert file is not None, path
    paragraphs = _CODE.sub("", file.content_string).split("\n\n")
    first = next((" ".join(each.split()) for each in paragraphs if each.strip() and not _TITLE.match(each)), "")
    sentence = _SENTENCE.match(_LINK.sub(r"\1", first))
    return f"- [{title}]({file.url})" + (f": {sentence[0]}" if sentence else "")


def _table(diagram: re.Match[str]) -> str:
    steps = re.findall(r"^ *(\S+) --> (\S+)(?:: (.*))?$", diagram[1], re.MULTILINE)
    named = {"[*]": "(nothing)"}
    rows = [f"| {named.get(old, old)} | {named.get(new, new)} | {by} |" for old, new, by in steps]
    return "| from | to | by |\n|---|---|---|\n" + "\n".join(rows)


def _titles(entries: Any, title: str = "") -> list[tuple[str, str]]:
    match entries:
        case str():
            return [(title or entries, entries)]
        case dict():
            return [found for name, inner in entries.items() for found in _titles(inner, name)]
        case _:
            return [found for inner in entries for found in _titles(inner)]
