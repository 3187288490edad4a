"""Requests for pages and sockets need the token, and their bodies have a limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from permutohedral.apps.playground.access import SizeLimited, TokenRequired

# fixed, since names of tests contain it and all workers must collect the same
TOKEN = "the-token-of-these-tests-is-long"
COOKIE = f"permutohedral-8000={TOKEN}"


async def secret(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret"})


def ask(kind: str, query: str = "", cookie: str | None = None, origin: str | None = None) -> list[Message]:
    """Return the answers to a request for a page ("http") or a socket ("websocket")."""
    answers: list[Message] = []

    async def send(message: Message) -> None:
        answers.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    headers = [(b"host", b"127.0.0.1:8000")]
    for name, value in (("cookie", cookie), ("origin", origin)):
        headers += [] if value is None else [(name.encode(), value.encode())]
    scope: dict[str, Any] = {"type": kind, "method": "GET", "path": "/", "query_string": query.encode()}
    asyncio.run(TokenRequired(secret, TOKEN, 8000)({**scope, "headers": headers}, receive, send))
    return answers


@pytest.mark.parametrize("query", ["", "token=", "token=wrong", f"token={TOKEN}x", "token=%C3%BC", f"other={TOKEN}"])
@pytest.mark.parametrize("cookie", [None, "permutohedral-8000=wrong", f"permutohedral-8001={TOKEN}"])
def test_rejects_requests_without_the_token(query: str, cookie: str | None) -> None:
    start, body = ask("http", query, cookie)
    assert start["status"] == 403
    assert b"token in its address" in body["body"]
    assert not any(name == b"set-cookie" for name, _ in start["headers"])
    assert [answer["type"] for answer in ask("websocket", query, cookie)] == ["websocket.close"]


def test_accepts_the_cookie_of_the_first_page() -> None:
    start, body = ask("http", f"token={TOKEN}")
    assert body["body"] == b"secret"
    cookie = dict(start["headers"])[b"set-cookie"].decode()
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    kept = cookie.partition(";")[0]
    assert kept == COOKIE
    assert ask("http", cookie=kept)[1]["body"] == b"secret"
    assert ask("websocket", cookie=kept) == [{"type": "websocket.accept"}]


@pytest.mark.parametrize("other", ['settings={"dark": 1}', "a[0]=1", "nameless", "theme=\u00fc"])
def test_ignores_cookies_of_other_servers(other: str) -> None:
    """Browsers send the cookies of all ports of a machine."""
    assert ask("http", cookie=f"{other}; {COOKIE}")[1]["body"] == b"secret"


@pytest.mark.parametrize("origin", ["http://127.0.0.1:9000", "http://localhost:8000", "https://example.org", "null"])
def test_rejects_the_cookie_from_pages_of_other_servers(origin: str) -> None:
    """SameSite does not separate ports, and sockets may be opened to other origins."""
    assert [answer["type"] for answer in ask("websocket", "", COOKIE, origin)] == ["websocket.close"]
    assert ask("http", "", COOKIE, origin)[0]["status"] == 403
    own = ask("websocket", "", COOKIE, "http://127.0.0.1:8000")
    assert [answer["type"] for answer in own] == ["websocket.accept"]


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 200), ((b"content-length", b"1000"), 200), ((b"content-length", b"1001"), 413),
     ((b"transfer-encoding", b"chunked"), 413)],
)  # fmt: skip
def test_rejects_large_bodies_before_reading_them(header: tuple[bytes, bytes] | None, status: int) -> None:
    answers: list[Message] = []

    async def send(message: Message) -> None:
        answers.append(message)

    async def receive() -> Message:
        raise AssertionError("the body is read")

    scope = {"type": "http", "headers": [(b"host", b"127.0.0.1"), *([] if header is None else [header])]}
    asyncio.run(SizeLimited(secret, 1000)(scope, receive, send))
    assert answers[0]["status"] == status
