"""Who may see the dashboard, and who may act: a token, a proxy's header, or the mounting app's own rule."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import isawaitable
from ipaddress import IPv4Network, IPv6Network, ip_network

from starlette.requests import Request

from outrider.errors import ConfigError

ACTIONS = frozenset({"replay", "edit", "discard", "withdraw", "pause", "cancel", "run_now"})
"""The permissions. `edit` is to replay with an edited payload; `pause` covers resume."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
COOKIE = "outrider_dashboard"
"""The beginning of its name."""
SHORTEST_TOKEN = 20
SESSION = 12 * 3600
"""Seconds until a login expires."""
LONGEST_NAME = 200
_PORT = re.compile(r":[0-9]{0,5}\Z")


@dataclass(frozen=True, slots=True)
class User:
    name: str
    """For the audit."""
    may: frozenset[str] = ACTIONS
    """What this user may do, if actions are enabled."""


Authorize = Callable[[Request], User | Awaitable[User | None] | None]


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that has authenticated the user and sends the name in a header."""

    header: str
    peers: tuple[IPv4Network | IPv6Network, ...]
    """The addresses of the proxy. The header of anybody else is ignored."""

    @classmethod
    def of(cls, header: str, peers: Iterable[str]) -> Proxy:
        try:
            networks = tuple(_unmapped(ip_network(each)) for each in peers)
        except ValueError as error:
            raise ConfigError(f"trusted peers: {error}") from None
        if not networks:
            raise ConfigError(f"the header {header} needs the addresses of the proxies that may send it")
        return cls(header, networks)

    def user(self, request: Request) -> User | None:
        names = request.headers.getlist(self.header)
        if request.client is None or len(names) != 1 or not (name := _utf8(names[0]).strip()):
            return None
        try:
            peer = _unmapped(ip_network(request.client.host)).network_address
        except ValueError:
            return None
        return User(name[:LONGEST_NAME]) if any(peer in each for each in self.peers) else None


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Sockets for both versions of IP write 10.0.0.5 as ::ffff:10.0.0.5."""
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return network if mapped is None or network.prefixlen < 96 else IPv4Network((mapped, network.prefixlen - 96))


def cookie_of(request: Request) -> str:
    """Browsers send a cookie to all ports of a host. The port is that of the address, so it is the same in all processes."""
    found = _PORT.search(request.headers.get("host", ""))
    return COOKIE + (found[0].replace(":", "_") if found else "")


def _utf8(header: str) -> str:
    """Headers are read as Latin-1; most proxies send UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


class Access:
    def __init__(
        self,
        *,
        token: str | None = None,
        proxy: Proxy | None = None,
        authorize: Authorize | None = None,
        hosts: Iterable[str] = LOOPBACK,
        actions: Iterable[str] = (),
    ) -> None:
        if [token, proxy, authorize].count(None) != 2:
            raise ConfigError("the dashboard needs exactly one of token, proxy and authorize: nobody else may see it")
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise ConfigError(f"the dashboard's token has fewer than {SHORTEST_TOKEN} characters: it could be guessed")
        self.token = token
        self.hosts = frozenset(each.lower() for each in hosts)
        self.actions = frozenset(actions)
        if unknown := self.actions - ACTIONS:
            raise ConfigError(f"no such action: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(ACTIONS))}")
        self._proxy = proxy
        self._authorize = authorize
        # With a token, all processes that share it accept each other's sessions and forms.
        self._key = hashlib.sha256(b"outrider dashboard " + (token or secrets.token_urlsafe(32)).encode()).digest()

    async def user(self, request: Request) -> User | None:
        """None: nobody has logged in."""
        if self._proxy is not None:
            return self._proxy.user(request)
        if self._authorize is not None:
            found = self._authorize(request)
            return await found if isawaitable(found) else found
        return self._of_session(request.cookies.get(cookie_of(request), ""))

    def may(self, user: User, action: str) -> bool:
        return action in self.actions & user.may

    def knows_host(self, host: str) -> bool:
        """`host` is the header, with or without a port."""
        return _PORT.sub("", host.lower()) in self.hosts

    def is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(
            hashlib.sha256(given.encode()).digest(), hashlib.sha256(self.token.encode()).digest()
        )

    def session(self, name: str) -> str:
        """The value of the cookie of a new login."""
        body = f"{int(time.time()) + SESSION}.{base64.urlsafe_b64encode(name.encode()).decode()}"
        return f"{body}.{self._signed('session', body)}"

    def form_token(self, user: User) -> str:
        """Only a page of ours can put this into a form."""
        return self._signed("form", user.name)

    def is_form_token(self, user: User, given: str) -> bool:
        return hmac.compare_digest(self.form_token(user).encode(), given.encode())

    def _of_session(self, value: str) -> User | None:
        body, _, signature = value.rpartition(".")
        expires, _, name = body.partition(".")
        if not hmac.compare_digest(self._signed("session", body).encode(), signature.encode()):
            return None
        return User(base64.urlsafe_b64decode(name).decode()) if int(expires) > time.time() else None

    def _signed(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()
