"""Redaction: text without passwords and hidden characters, bounded in size, safe to store and to print."""

from __future__ import annotations

import re
from urllib.parse import quote

MESSAGE_BYTES = 8192
"""The most bytes of a message that is kept."""
MASKED_CHARACTERS = 64 * 1024
"""The most characters of a text that is searched for secrets. The rest is cut off."""
SHORTEST_SECRET = 4
"""Characters of the shortest password that is masked wherever it stands."""
EXAMPLE_PASSWORDS = ("password",)
"""Passwords in sentences that explain how to write a URL. They are not masked."""
CUT = "… (cut)"
"""Marks a text that was cut."""

_URL = re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,30}://)(\S*)", re.I)
_NEXT_URL = re.compile(r"(?=(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://)", re.I)
_WEB = {"http://", "https://", "ws://", "wss://"}
_TOKEN_ALONE = {"nats://", "tls://"}
_PORT_AND_PATH = re.compile(r"\d{1,5}[/?#]")
_NO_PASSWORD = re.compile(r"\d{1,5}(?!\w)|\W*\Z")
_SECRET = re.compile(
    r"""
    ([?&])?
    (
        (?:password|passwd|passphrase|(?<![a-z])pass|pwd|secret|token|api[_-]?key|authorization)
        (?:
            (?:\\?['"])?\]?\s{0,20}(?:={1,2}>?|%3D)\s{0,20}
            |
            (?:\\?['"])?\]?\s{0,20}:(?!//)\s{0,20}
            (?!(?-i:(?!Bearer|Basic|Digest|Token)[A-Z][a-z]+\ [a-z]))  # a sentence of pydantic about a field of that name
            |
            \\?['"]\s{0,20},\s{0,20}
        )
        |
        password\s{1,20}(?=')
    )
    (?:
        [bru]{0,2}'(?:[^'\\]|\\.|'')*(?:'|\\?\Z)
        |
        [bru]{0,2}"(?:[^"\\]|\\.|"")*(?:"|\\?\Z)
        |
        (?!\*\*\*)(?:(?:bearer|basic|digest|token)\s{1,20})?(?(1)[^\s&\#]+|(?:\\.|[^\s\\])+)
    )
    """,
    re.I | re.S | re.X,
)
_passwords: tuple[re.Pattern[str], ...] = ()
_HIDDEN = re.compile(
    "[\x01-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def mask(text: str) -> str:
    """The text without secrets: those recognised by context, and those that `conceal` was told. A huge text is cut."""
    text = "".join(_URL.sub(_without_user_info, piece) for piece in _NEXT_URL.split(text[:MASKED_CHARACTERS]))
    text = _SECRET.sub(r"\1\2***", text)
    for secret in _passwords:
        text = secret.sub("***", text)
    return text


def conceal(secret: object) -> None:
    """Mask this password from now on, wherever it stands. A short or alphabetic one is masked only as a whole word."""
    global _passwords
    if type(secret) is not str or len(secret) < SHORTEST_SECRET or secret in EXAMPLE_PASSWORDS:
        return
    either = "|".join(re.escape(each) for each in (secret, quote(secret, safe="")))
    plain = secret.isalpha() or len(secret) < 2 * SHORTEST_SECRET
    found = re.compile(rf"(?<!\w)(?:{either})(?!\w)" if plain else either)
    if found not in _passwords:
        _passwords = (*_passwords[-15:], found)


def sanitise(text: str, limit: int = MESSAGE_BYTES) -> str:
    """Text without NUL, with hidden characters made visible as escapes, in at most `limit` bytes of UTF-8."""
    text = text.replace("\x00", "")
    encoded = _HIDDEN.sub(_escaped, text[: limit + 1]).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    mark = CUT if len(CUT.encode()) <= limit else ""
    return encoded[: limit - len(mark.encode())].decode(errors="ignore") + mark


def _without_user_info(found: re.Match[str]) -> str:
    """The user info reaches up to the last @: a password that was not percent-encoded may contain @ and /."""
    scheme, rest = found.groups()
    before, at, place = rest.rpartition("@")
    user, colon, password = (before if at else rest).partition(":")
    named = colon and "/" not in user and not user.startswith("[")
    if at and named and not (scheme.lower() in _WEB and _PORT_AND_PATH.match(password)):
        return found.group() if password in EXAMPLE_PASSWORDS else f"{scheme}{user}:***@{place}"
    if at and scheme.lower() in _TOKEN_ALONE:
        return f"{scheme}***@{place}"
    if not at and named and not _NO_PASSWORD.match(password):
        return f"{scheme}{user}:***"
    return found.group()


def _escaped(found: re.Match[str]) -> str:
    number = ord(found.group())
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
