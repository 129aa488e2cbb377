"""URLs of brokers: which adapter is for a URL, and how to show the URL without its secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from outrider.errors import ConfigError
from outrider.redaction import without_secrets

if TYPE_CHECKING:
    from outrider.streams.nats import JetStream
    from outrider.streams.redis import RedisStreams
    from outrider.streams.stream import Codec

REDIS = ("redis", "rediss", "unix")
NATS = ("nats", "tls")


def broker(
    url: str, *, stream: str, codec: Codec | None = None, create: bool = False, **options: Any
) -> RedisStreams | JetStream:
    """The adapter for the URL's scheme, with its own `options`.

    `create`: create the stream if it is missing. Redis does that with the first entry anyway.
    """
    scheme = Address.of(url).scheme
    if scheme in REDIS:
        from outrider.streams.redis import RedisStreams

        return RedisStreams(url, stream=stream, codec=codec, **options)
    if scheme in NATS:
        from outrider.streams.nats import JetStream

        return JetStream(url, stream=stream, codec=codec, create=create, **options)
    known = ", ".join(f"{name}://" for name in (*REDIS, *NATS))
    raise ConfigError(f"no broker has {scheme}:// URLs: use one of {known}")


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a broker's URL. Its text, and what `masked` returns, never contain the password or token."""

    scheme: str
    location: str
    """Hosts, ports and path, which may be shown."""
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    parameters: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            location = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
            _ = [urlsplit(f"//{host}").port for host in location.partition("/")[0].split(",")]
            if "@" in parts.path + parts.query + parts.fragment:  # then the text before the @ is the end of a password
                location = ""
        except ValueError:
            location = ""
        if not location or not parts.scheme:
            # Not even a part of it is shown, because any part may be a password.
            raise ConfigError(
                "the broker's URL cannot be read: write scheme://user:password@host:port, with the special characters "
                "of user and password percent-encoded (urllib.parse.quote): @ is %40, / %2F, : %3A, ? %3F, # %23 and % %25"
            )
        user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return cls(parts.scheme, location, user, password, given)

    def masked(self, text: object) -> str:
        """A text that the broker or its client wrote, without the secrets of this URL."""
        alone = self.user if self.password is None else None
        return without_secrets(text, (self.password, self.parameters.get("password"), alone))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.location}"
