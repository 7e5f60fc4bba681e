"""The token: nothing is served without it, and a browser brings it once."""

from __future__ import annotations

import socket

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.server.fake_service import FakeService
from tests.server.live_client import LiveClient
from workbench.errors import ConfigurationError
from workbench.server.access import TokenGate, check_token
from workbench.server.live import build_live_router
from workbench.ui import explain

TOKEN = "correct horse é"
PATHS = ("/", "/health", "/live/frame", "/history/range", "/history/save", "/gradio_api/info", "/nowhere")


@pytest.fixture
def http() -> TestClient:
    service = FakeService()
    service.step()
    app = FastAPI()
    app.include_router(build_live_router(service, explain))
    app.add_middleware(TokenGate, token=TOKEN)

    @app.get("/")
    def page() -> str:
        return "the page"

    return TestClient(app, follow_redirects=False)


@pytest.mark.parametrize("path", PATHS)
def test_request_without_token_is_401_with_a_page_that_says_how(http: TestClient, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert "/?token=…" in response.text
    assert "the page" not in response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic correct"},
        {"Cookie": "workbench_000000000000=1"},
        {"Cookie": "workbench=;;=\u00e9"},
    ],
)
def test_wrong_credentials_are_401(http: TestClient, headers: dict[str, str]) -> None:
    encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    assert http.get("/", headers=encoded).status_code == 401


@pytest.mark.parametrize("token", ["wrong", "", TOKEN + "x", TOKEN[:-1]])
def test_wrong_token_in_the_address_is_401(http: TestClient, token: str) -> None:
    assert http.get("/", params={"token": token}).status_code == 401
    assert "set-cookie" not in http.get("/", params={"token": token}).headers


def test_token_in_the_address_is_traded_for_a_cookie_that_opens_everything(http: TestClient) -> None:
    response = http.get("/", params={"token": TOKEN, "__theme": "dark"})
    assert (response.status_code, response.headers["location"]) == (303, "./?__theme=dark")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "correct" not in cookie
    assert http.get("/").text == '"the page"'
    assert http.get("/history/range").json()["last"] == 0
    with http.websocket_connect("/live") as live:
        assert LiveClient().apply(live.receive_bytes()).step_id == 0


def test_cookie_of_another_token_does_not_open(http: TestClient) -> None:
    other = FastAPI()
    other.add_middleware(TokenGate, token="another token")
    cookie = TestClient(other, follow_redirects=False).get("/?token=another%20token").headers["set-cookie"]
    assert http.get("/", headers={"Cookie": cookie.partition(";")[0]}).status_code == 401


def test_redirect_stays_on_this_host(http: TestClient) -> None:
    response = http.get("http://testserver//elsewhere.example/x:y", params={"token": TOKEN})
    assert response.headers["location"] == "./x%3Ay"


def test_program_brings_the_token_in_a_header(http: TestClient) -> None:
    headers = {b"Authorization": f"Bearer {TOKEN}".encode()}
    assert http.get("/health", headers=headers).status_code == 200
    assert http.post("/live/frame", headers=headers).status_code == 405


def test_feed_is_closed_without_a_token_and_open_with_it(http: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect) as caught, http.websocket_connect("/live"):
        pass
    assert caught.value.code == 1008
    with http.websocket_connect(f"/live?token={TOKEN}") as live:
        assert LiveClient().apply(live.receive_bytes()).is_full


def test_address_that_others_reach_needs_a_token() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        with pytest.raises(ConfigurationError, match=r"host 0\.0\.0\.0 can be reached .* --token TOKEN or WORKBENCH_T"):
            check_token(listener, None)
        check_token(listener, "long enough")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check_token(listener, None)
        check_token(listener, "long enough")


def test_short_token_is_refused_with_a_way_to_make_one() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(ConfigurationError, match="the token has 7 characters, at least 8 are needed: take what python"),
    ):
        check_token(listener, "1234567")
