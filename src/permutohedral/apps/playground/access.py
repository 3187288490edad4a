"""Token authentication of the page and its sockets, and the size of requests."""

from __future__ import annotations

import secrets
from urllib.parse import parse_qs

from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class TokenRequired:
    """Reject requests without the token, in the address or in a cookie that this server has set.

    The port of the server is part of the cookie's name, since browsers send cookies to all ports of a machine.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app, self._token, self._cookie = app, token, f"permutohedral-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        in_query = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        # servers at other ports may have set malformed cookies, at which a stricter parser stops
        in_cookie = cookie_parser(headers.get(b"cookie", b"").decode("latin-1")).get(self._cookie, "")
        has_token = self._is_token(in_query)
        if not has_token and not (self._is_token(in_cookie) and _is_same_origin(headers)):
            await self._reject(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if has_token and message["type"] == "http.response.start":
                cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode())]
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())

    async def _reject(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        text = "This page needs the token in its address: open the whole address that the command has printed.\n"
        await PlainTextResponse(text, 403)(scope, receive, send)


class SizeLimited:
    """Reject requests whose body has more than `max_bytes`, before it is read; browsers state the size."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if int(headers.get(b"content-length", 0)) > self._max_bytes or b"transfer-encoding" in headers:
            text = f"A request has at most {self._max_bytes:,} bytes, and states their number.\n"
            await PlainTextResponse(text, 413, {"connection": "close"})(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _is_same_origin(headers: dict[bytes, bytes]) -> bool:
    """Return whether the request comes from a page of this server; SameSite does not separate ports."""
    origin = headers.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == headers.get(b"host")
