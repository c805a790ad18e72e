"""The door of a node with a key is shut to all who do not sign, but for two pages that tell."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from quart import Quart

from discovery.signed_calls import REFUSED, SIGNATURE, CallKey
from kv_transfer.side_channel.log_throttle import QUIET_S
from node.metrics import NodeMetrics
from node.signed_calls_only import MOST_SENDERS, SignedCallsOnly

KEY, NOW = CallKey.of("the cluster's"), 1e9
ROUTES = ("/health", "/metrics", "/server_info", "/inference/v1/generate", "/v1/models")


class Rig:
    """A door before an application that counts who gets there."""

    def __init__(self) -> None:
        self.entered, self.read = list[str](), 0
        self.now = 0.0
        self.metrics = NodeMetrics()
        app = Quart("node")
        for path in ROUTES:
            app.add_url_rule(path, path, self._entered(path), methods=["GET", "POST"])
        self.door = SignedCallsOnly(
            app, KEY, self.metrics.refused, lambda: NOW, lambda: self.now
        )

    def _entered(self, path: str) -> Any:  # noqa: ANN401
        def enter() -> str:
            self.entered.append(path)
            return "in"

        return enter

    async def ask(
        self, method: str, path: str, said: str | None = None, sender: str = "10.0.0.9"
    ) -> tuple[int, bytes]:
        """Its answer."""
        self.read = 0
        target, _, query = path.partition("?")
        headers = [] if said is None else [(SIGNATURE.lower().encode(), said.encode("latin-1"))]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": (sender, 1),
            "server": ("10.0.0.1", 8100),
        }
        sent = list[Any]()

        async def send(message: Any) -> None:  # noqa: ANN401
            sent.append(message)

        async def receive() -> Any:  # noqa: ANN401
            self.read += 1
            if self.read > 1:
                await asyncio.Event().wait()  # nothing more comes
            return {"type": "http.request", "body": b"", "more_body": False}

        await self.door(scope, receive, send)
        return sent[0]["status"], b"".join(one.get("body", b"") for one in sent)

    def counted(self, reason: str) -> float:
        return float(self.metrics.refused.labels(reason)._value.get())


@pytest.mark.parametrize("path", [*ROUTES, "/orders", "/no/such/path", "/health/", "//metrics"])
async def test_whatever_works_tells_or_is_not_there_wants_a_signature(path: str) -> None:
    rig = Rig()
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        if method == "GET" and path in {"/health", "/metrics"}:
            continue
        status, body = await rig.ask(method, path)
        error = msgspec.json.decode(body)["error"]
        assert (status, error["code"]) == (401, REFUSED)
        assert "--cluster-key" in error["message"]
        assert rig.read == 0, "its body is not worth waiting for"
    assert not rig.entered


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_load_balancers_and_prometheus_need_no_key(path: str) -> None:
    rig = Rig()
    assert (await rig.ask("GET", path))[0] == 200
    assert rig.entered == [path]


@pytest.mark.parametrize("kind", ["websocket", "lifespan", "any"])
async def test_only_http_comes_in(kind: str) -> None:
    """Whatever Quart would do with it."""
    entered = list[object]()

    async def app(*given: object) -> None:
        entered.append(given)

    door = SignedCallsOnly(app, KEY, NodeMetrics().refused)
    with pytest.raises(NotImplementedError, match=kind):
        await door({"type": kind, "path": "/health", "headers": []}, None, None)
    assert not entered


async def test_who_signs_is_let_in_once_for_each_thing_it_asks() -> None:
    rig, path = Rig(), "/server_info?config_format=json"
    said = KEY.sign("GET", path, wall_time=NOW)
    assert (await rig.ask("GET", path, said))[0] == 200
    assert (await rig.ask("GET", "/v1/models", said))[0] == 403
    assert (await rig.ask("POST", path, said))[0] == 403
    assert rig.entered == ["/server_info"]


@pytest.mark.parametrize(
    ("key", "at", "status", "reason", "told"),
    [
        ("another", NOW, 403, "forged", "is --cluster-key the same there?"),
        ("the cluster's", NOW - 95, 403, "stale", "signed 95 s ago, by our clock: are both"),
        ("the cluster's", NOW + 95, 403, "stale", "signed -95 s ago, by our clock: are both"),
    ],
)
async def test_a_wrong_key_and_a_wrong_clock_are_told_apart_and_counted(
    key: str, at: float, status: int, reason: str, told: str
) -> None:
    rig = Rig()
    said = CallKey.of(key).sign("POST", "/v1/models", wall_time=at)
    got, body = await rig.ask("POST", "/v1/models", said)
    assert got == status
    assert told in msgspec.json.decode(body)["error"]["message"]
    assert rig.counted(reason) == 1


async def test_each_sender_is_told_of_once_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rig = Rig()
    for _ in range(5):
        await rig.ask("POST", "/v1/models")
    await rig.ask("POST", "/v1/models", sender="10.0.0.8")
    rig.now = QUIET_S
    await rig.ask("POST", "/v1/models")
    told = [record.getMessage() for record in caplog.records]
    assert [one.split(":")[0] for one in told] == [
        "refused 1 calls of 10.0.0.9, such as POST '/v1/models'",
        "refused 1 calls of 10.0.0.8, such as POST '/v1/models'",
        "refused 5 calls of 10.0.0.9, such as POST '/v1/models'",
    ]


async def test_strangers_do_not_pile_up() -> None:
    rig = Rig()
    for number in range(MOST_SENDERS + 10):
        await rig.ask("GET", "/v1/models", sender=f"sender {number}")
    assert len(rig.door._senders) == MOST_SENDERS
