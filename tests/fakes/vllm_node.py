"""Nodes that speak vLLM's HTTP contract, and refuse what is not exactly in it.

Written after the wire that vLLM 0.33 documents; no vLLM has a part in it. KV is not moved:
`Network` knows which prompts' KV was offered under which name, and decode runs only those.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
from quart import Quart, Response, request

from discovery.registration import Registration, Role
from tests.fakes.serving import serving
from tests.fakes.vllm_answer import Answer
from tests.fakes.vllm_body import Refused, read

SIX_KEYS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PATIENCE_S = 60.0
SUFFIX = "-0-1a2b3c4d"
HOST = "10.9.9.9"


class Connector(StrEnum):
    """How it hands KV over."""

    PULL = "pull"
    PUSH = "push"
    MOONCAKE = "mooncake"


@dataclass
class Network:
    """Whose KV was offered, by engine and name.

    `breaks_at`: the next stream breaks off behind so many tokens, whoever's it is.
    """

    offered: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    breaks_at: int | None = None
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def offer(self, engine: str, name: str, tokens: tuple[int, ...]) -> None:
        async with self.news:
            self.offered[engine, name] = tokens
            self.news.notify_all()

    async def fetch(self, engine: str, name: str) -> tuple[int, ...]:
        async with self.news:
            await self.news.wait_for(lambda: (engine, name) in self.offered)
            return self.offered.pop((engine, name))


@dataclass
class Asked:
    """One call as it came."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def params(self) -> Any:  # noqa: ANN401  JSON
        return self.body.get("kv_transfer_params")

    @property
    def name(self) -> str:
        return self.headers["x-request-id"]

    @property
    def kind(self) -> str:
        """The type of its answer."""
        return "text/event-stream" if self.body["stream"] else "application/json"


@dataclass
class VllmNode:
    """`go` is waited for before a prompt is run; `engine` is another one after a restart.

    `left` is set once a caller has hung up before its answer.
    """

    role: Role
    network: Network
    connector: Connector = Connector.PULL
    token_endpoint: bool = True
    off_status: int = 403  # of an endpoint that is off; a vLLM that has none: 404
    engine: str = "engine-1"
    address: str = ""
    bootstrap_port: int | None = None
    key: str | None = None
    fails: int = 0
    says_nothing: int = 0  # so many answers are of status 200 and empty
    cached: int = 0
    context: int | None = None
    told_context: int | None = None
    calls: list[Asked] = field(default_factory=list)
    queries: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.go.set()

    @property
    def registration(self) -> Registration:
        return Registration(self.role, self.address, "", bootstrap_port=self.bootstrap_port)

    async def answer(self, asked: Asked) -> Response:
        self.calls.append(asked)
        self.begun.set()
        try:
            return await self._answer(asked)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def _answer(self, asked: Asked) -> Response:
        textual = asked.path == "/v1/completions"
        try:
            tokens, said = self._checked(asked, textual)
        except Refused as error:
            return _error(400, str(error))
        await self.go.wait()
        if self.fails:
            self.fails -= 1
            return _error(500, "KV load failure")
        if self.says_nothing:
            self.says_nothing -= 1
            return Response(b"", content_type=asked.kind)
        params = asked.params or {}
        if params.get("do_remote_prefill"):
            await self._fetch(asked, tokens)
        answer = Answer(self.cached, tokens, said, textual)
        if params.get("do_remote_decode") and not answer.stopped:  # vLLM's own condition
            answer.handed = await self._hand_over(asked, tokens)
        if asked.body["stream"]:
            breaks_at, self.network.breaks_at = self.network.breaks_at, None
            response = Response(answer.frames(breaks_at), content_type="text/event-stream")
            response.timeout = None
            return response
        return _json(answer.whole())

    def _checked(
        self, asked: Asked, textual: bool
    ) -> tuple[tuple[int, ...], Mapping[str, Any]]:
        body = asked.body
        tokens, sampling = read(body, textual=textual)
        if (asked.params or {}).get("do_remote_decode"):
            if body["stream"] or sampling["max_tokens"] != 1 or sampling["min_tokens"] > 1:
                raise Refused("a prefill leg is one token, and not streamed")
            self._check_hold(asked.params)
        longest = len(tokens) + (sampling["max_tokens"] if textual else 1)
        if self.context is not None and longest > self.context:
            raise Refused(f"This model's maximum context length is {self.context} tokens.")
        return tokens, sampling

    def _check_hold(self, params: dict[str, Any]) -> None:
        if self.connector is not Connector.MOONCAKE:
            if params != SIX_KEYS:
                raise Refused(f"not the six keys: {params}")
        elif set(params) != {"do_remote_decode", "do_remote_prefill", "transfer_id"}:
            raise Refused(f"not Mooncake's keys: {params}")

    async def _hand_over(self, asked: Asked, tokens: tuple[int, ...]) -> dict[str, Any] | None:
        if self.connector is Connector.MOONCAKE:
            if asked.headers["x-data-parallel-rank"] != "0":
                raise AssertionError("no such rank")
            await self.network.offer(self.engine, asked.params["transfer_id"], tokens)
            return None
        inner = f"cmpl-{asked.name}{SUFFIX}"
        push = self.connector is Connector.PUSH
        await self.network.offer(self.engine, asked.name if push else inner, tokens)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[17, 18]],
            "remote_engine_id": self.engine,
            "remote_request_id": inner,
            "remote_host": HOST,
            "remote_port": 5600,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(tokens),
            "remote_blocks_expiry_time": None,
            "remote_registration_generation": 1,
            "transfer_mode": self.connector.value,
            "remote_prefill_cached_tokens": self.cached,
        }

    async def _fetch(self, asked: Asked, tokens: tuple[int, ...]) -> None:
        """What is missing in the parameters is an error here, and 500 over there."""
        params = asked.params
        name = params.get("transfer_id") or params["remote_request_id"]
        if self.connector is Connector.PUSH:
            name = asked.name  # both legs have the same
        if self.connector is Connector.MOONCAKE:
            assert set(params) == {
                *("do_remote_decode", "do_remote_prefill", "transfer_id"),
                *("remote_bootstrap_addr", "remote_engine_id"),
            }
        else:
            assert (params["remote_host"], params["remote_port"]) == (HOST, 5600)
            assert params["tp_size"] == params["pp_size"] == 1
        if self.connector is Connector.PULL:
            assert params["remote_block_ids"] == [[17, 18]]
            assert "pdserve" not in params
        async with asyncio.timeout(PATIENCE_S):
            assert await self.network.fetch(params["remote_engine_id"], name) == tokens


def vllm_app(node: VllmNode) -> Quart:
    app = Quart("vllm")

    @app.before_request
    async def guard() -> Response | None:
        """As vLLM's --api-key does: what is not under /v1 or /inference is open."""
        guarded = request.path.startswith(("/v1", "/inference"))
        if (
            guarded
            and node.key
            and request.headers.get("Authorization") != f"Bearer {node.key}"
        ):
            return _json({"error": "Unauthorized"}, 401)
        return None

    @app.post("/v1/completions")
    async def completions() -> Response:
        return await node.answer(await _asked())

    @app.post("/inference/v1/generate")
    async def generate() -> Response:
        if not node.token_endpoint:
            return _error(node.off_status, "Scale-out endpoints are disabled.")
        return await node.answer(await _asked())

    @app.get("/v1/models")
    async def models() -> Response:
        card = {"id": "m", "owned_by": "vllm", "max_model_len": node.told_context}
        return _json({"object": "list", "data": [card]})

    @app.get("/health")
    async def health() -> Response:
        return Response(b"")

    return app


def bootstrap_app(node: VllmNode) -> Quart:
    app = Quart("mooncake")

    @app.get("/query")
    async def query() -> Response:
        node.queries += 1
        workers = {"0": {"0": "tcp://10.9.9.9:1"}}
        return _json({"0": {"engine_id": node.engine, "worker_addr": workers}})

    return app


@asynccontextmanager
async def vllm_nodes(*nodes: VllmNode) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            node.address = await stack.enter_async_context(serving(vllm_app(node)))
            if node.role is Role.PREFILL and node.connector is Connector.MOONCAKE:
                bootstrap = await stack.enter_async_context(serving(bootstrap_app(node)))
                node.bootstrap_port = int(bootstrap.rpartition(":")[2])
        yield


async def _asked() -> Asked:
    body: Any = await request.get_data(as_text=False)
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Asked(request.path, headers, msgspec.json.decode(body))


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype="application/json")


def _error(status: int, message: str) -> Response:
    said = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return _json({"error": said}, status)
