"""Lets in who knows the token: other users and other pages of this machine do not."""

from __future__ import annotations

import secrets
from urllib.parse import parse_qs

from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def new_token() -> str:
    """A word that nobody guesses."""
    return secrets.token_urlsafe(24)


class TokenRequired:
    """Refuses what has the token neither in its address nor, from pages of this server, in a cookie.

    Args:
        app: what is protected, sockets included.
        token: the right one.
        port: of the server, in the name of the cookie: browsers send cookies to all ports of a machine.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app, self._token, self._cookie = app, token, f"permutohedral-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        # servers at other ports of this machine may have set cookies of any form, which a stricter parser stops at
        kept = cookie_parser(headers.get(b"cookie", b"").decode("latin-1")).get(self._cookie, "")
        in_address = self._is_right(asked)
        if not in_address and not (self._is_right(kept) and _is_own_page(headers)):
            await self._refuse(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if in_address and message["type"] == "http.response.start":
                cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode())]
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _is_right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        told = "This page needs the token in its address: open the whole address that the command has printed.\n"
        await PlainTextResponse(told, 403)(scope, receive, send)


def _is_own_page(headers: dict[bytes, bytes]) -> bool:
    """Whether no page of another server asks: the browser sends the cookie for those of other ports as well."""
    origin = headers.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == headers.get(b"host")
