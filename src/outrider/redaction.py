"""Texts that are safe to store and to show: secrets masked, hidden characters made visible, and cut to a limit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

MESSAGE_BYTES = 8192
CUT = "… (cut)"
MASKED_CHARACTERS = 64 * 1024
"""`mask` drops what follows: its patterns must not run over megabytes."""
SHORTEST_SECRET = 4
EXAMPLES = ("password",)
"""Not secrets: sentences that explain how a URL is written use them."""

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
            (?!(?-i:(?!Bearer|Basic|Digest|Token)[A-Z][a-z]+\ [a-z]))  # pydantic's sentence on a field of that name
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
_SQL = re.compile(
    r"""
    (?P<kept> "(?:[^"]|"")*" | (?<![\w$])[a-z_][\w$]*+(?!') | \$\d+ )
    | (?P<comment> --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?<![\w$])e'(?:[^'\\]|''|\\.)*(?:'|\Z) | '(?:[^']|'')*(?:'|\Z) | (?P<quote>\$(?:[a-z_]\w*)?\$).*?(?:(?P=quote)|\Z)
    | (?<![\w$])\d[\w.]*
    """,
    re.I | re.S | re.X,
)
_concealed: tuple[re.Pattern[str], ...] = ()
_HIDDEN = re.compile(
    "[\x01-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def mask(text: str) -> str:
    """The text with *** in place of secrets: those recognised by context, and those passed to `conceal`."""
    text = "".join(_URL.sub(_without_user_info, piece) for piece in _NEXT_URL.split(text[:MASKED_CHARACTERS]))
    text = _SECRET.sub(r"\1\2***", text)
    for secret in _concealed:
        text = secret.sub("***", text)
    return text


def conceal(secret: object) -> None:
    """Let `mask` hide this password wherever it occurs; one that is an ordinary or short word, only as a whole word."""
    global _concealed
    if type(secret) is not str or len(secret) < SHORTEST_SECRET or secret in EXAMPLES:
        return
    either = "|".join(re.escape(each) for each in (secret, quote(secret, safe="")))
    plain = secret.isalpha() or len(secret) < 2 * SHORTEST_SECRET
    found = re.compile(rf"(?<!\w)(?:{either})(?!\w)" if plain else either)
    if found not in _concealed:
        _concealed = (*_concealed[-15:], found)


def without_secrets(text: object, secrets: Iterable[str | None]) -> str:
    """The text with *** in place of these secrets, also where they are percent-encoded."""
    shown = str(text)
    for secret in filter(None, secrets):
        shown = shown.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return shown


def without_literals(statement: str) -> str:
    """The SQL with … in place of strings and numbers, which may be anybody's data, and without comments."""
    return _SQL.sub(lambda found: found["kept"] or ("" if found["comment"] else "…"), statement)


def sanitise(text: str, limit: int = MESSAGE_BYTES) -> str:
    """The text without NUL, with escapes for hidden characters, in at most `limit` bytes of UTF-8."""
    text = text.replace("\x00", "")
    encoded = _HIDDEN.sub(_escaped, text[: limit + 1]).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    mark = CUT if len(CUT.encode()) <= limit else ""
    return encoded[: limit - len(mark.encode())].decode(errors="ignore") + mark


def _without_user_info(found: re.Match[str]) -> str:
    """The password ends at the last @: one that was not percent-encoded may contain @ and /."""
    scheme, rest = found.groups()
    before, at, place = rest.rpartition("@")
    user, colon, password = (before if at else rest).partition(":")
    named = colon and "/" not in user and not user.startswith("[")
    if at and named and not (scheme.lower() in _WEB and _PORT_AND_PATH.match(password)):
        return found.group() if password in EXAMPLES else f"{scheme}{user}:***@{place}"
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
