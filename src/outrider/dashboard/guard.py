"""What every request passes before a page sees it: host, login, origin, form token. Every response gets strict headers."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, quote

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.dashboard.access import Access

LONGEST_FORM = 4 * 1024 * 1024
"""Bytes of a form. The largest field is an edited payload."""
LONGEST_LOGIN = 16 * 1024
"""Bytes of the form that anybody may send."""
BODY = 30.0
"""Seconds for the body of a form."""
MOST_FIELDS = 40
LOGIN, STATIC = "/login", "/static/"
"""Paths that need no login."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        refused = await self._refusal(request)
        await (self._app if refused is None else refused)(scope, receive, guarded)

    async def _refusal(self, request: Request) -> Response | None:
        """Puts the user, and the fields of a form, into `request.state`."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if len(request.headers.getlist("host")) != 1 or not self._access.knows_host(request.headers["host"]):
            return PlainTextResponse("This host name is not allowed: outrider dashboard --allow-host NAME\n", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("GET or POST\n", 405)
        if "\0" in path or b"%00" in request.scope["query_string"]:
            return PlainTextResponse("The address contains U+0000, which Postgres cannot store.\n", 400)
        if request.method == "POST" and not _same_origin(request):
            return PlainTextResponse("This form came from another site.\n", 403)
        request.state.user = user = await self._access.user(request)
        if user is None and path != LOGIN and not path.startswith(STATIC):
            return self._to_login(request, path)
        if request.method == "POST":
            try:
                async with asyncio.timeout(BODY):
                    form = await _form(request, LONGEST_FORM if user else LONGEST_LOGIN)
            except TimeoutError:
                return PlainTextResponse("The form came too slowly.\n", 408, {"Connection": "close"})
            except ClientDisconnect:
                return PlainTextResponse("", 400)
            if form is None:
                return PlainTextResponse("The form is too large or malformed.\n", 413)
            request.state.form = form
            if path != LOGIN and (user is None or not self._access.is_form_token(user, form.get("form_token", ""))):
                return PlainTextResponse("This form has expired: go back, reload the page, and try again.\n", 403)
        return None

    def _to_login(self, request: Request, path: str) -> Response:
        if self._access.token is None:
            return PlainTextResponse("You are not logged in.\n", 401)
        if request.method != "GET" or path.startswith("/live/"):
            return PlainTextResponse("You are not logged in.\n", 401)
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{request.scope.get('root_path', '')}/login?next={quote(path + query)}", 303)


def _same_origin(request: Request) -> bool:
    """Browsers send Origin with every POST. The scheme is not compared: a proxy may have ended TLS."""
    origins, host = request.headers.getlist("origin"), request.headers["host"].lower()
    return len(origins) == 1 and origins[0].lower() in (f"http://{host}", f"https://{host}")


async def _form(request: Request, longest: int) -> dict[str, str] | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > longest:
            return None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MOST_FIELDS)
    except ValueError:
        return None
    return None if b"%00" in body or b"\0" in body else dict(fields)
