"""Hooks of MkDocs: pages of the reference that are made from the code, `llms.txt`, and links that leave the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site import reference

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in reference.pages():
        files.append(File.generated(config, path, content=text))
    listed = [f"- {title}: {path}" for title, path in _titles(config.nav or [])]
    about = "# Outrider\n\n> " + str(config.site_description) + "\n\n" + "\n".join(listed) + "\n"
    files.append(File.generated(config, "llms.txt", content=about))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """A link to a file of the repository that is no page becomes the file's name: the site stands alone."""
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link[2].partition("#")[0]).resolve()
        if target.is_relative_to(config.docs_dir):
            return link[0]
        return f"{link[1]} (`{target.relative_to(ROOT)}`)"

    return _LINK.sub(named, markdown)


def _titles(entries: Any, title: str = "") -> list[tuple[str, str]]:
    match entries:
        case str():
            return [(title or entries, entries)]
        case dict():
            return [found for name, inner in entries.items() for found in _titles(inner, name)]
        case _:
            return [found for inner in entries for found in _titles(inner)]
