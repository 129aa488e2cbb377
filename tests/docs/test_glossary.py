"""The glossary is short, begins with what users need, and what users read keeps to its words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
FOR_USERS = GLOSSARY.split("## For users\n", 1)[1].split("\n## ", 1)[0]
NOT_FOR_USERS = re.compile(r"\b(pokes?|poked|concedes?|conceded|numbers drawn|parked|in flight|owing)\b")


def entries(text: str) -> list[str]:
    return re.findall(r"^\| \*\*(.*?)\*\*", text, re.MULTILINE)


def test_the_glossary_is_short() -> None:
    assert len(entries(FOR_USERS)) == 15
    assert len(entries(GLOSSARY)) <= 55
    assert len(entries(GLOSSARY)) == len(set(entries(GLOSSARY)))


@pytest.mark.parametrize("page", ["README.md", "docs/glossary.md", "docs/guide.md", "docs/features.md"])
def test_what_users_read_keeps_to_these_words(page: str) -> None:
    assert NOT_FOR_USERS.findall((ROOT / page).read_text()) == []
