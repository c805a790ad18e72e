"""Text through a whole cluster: the same words as the model alone would say."""

import msgspec
import pytest
from quart import Quart

from api.routes import openai_routes
from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import Cluster
from tests.fakes.model import alone
from tests.fakes.text import byte_level, served

PROMPT = "the cat sat on the mat"


@pytest.mark.parametrize("x", [0, 1])
async def test_a_completion_is_what_the_model_alone_says(x: int) -> None:
    cluster, app, codec = Cluster(x=x), Quart(__name__), byte_level()
    app.register_blueprint(openai_routes(cluster.door, served(context=64)))
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 3}
    answer = await app.test_client().post("/v1/completions", json=body)
    sampling = Sampling(12, seed=3)
    tokens = alone(Request(RequestId("r"), codec.encode(PROMPT), sampling))
    choice = msgspec.json.decode(await answer.get_data(as_text=False))["choices"][0]
    assert choice["text"] == codec.decode(tokens)
    cluster.settle(seconds=0)
    assert cluster.leaked_blocks == 0
