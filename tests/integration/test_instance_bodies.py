"""Bodies that say which node is to be added or removed."""

import msgspec
import pytest

from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster

KINDS, PLACE = "It has to be one of prefill, decode.", "It has to be the node's HOST:PORT."
DEEP = b"[" * 100_000


async def refusal(proxy: HttpCluster, body: bytes, what: str = "add") -> dict[str, str]:
    """The error that answers this body."""
    url, key = f"http://{proxy.url}/instances/{what}", {"X-API-Key": ADMIN}
    async with proxy.session.post(url, data=body, headers=key) as answered:
        assert answered.status == 400
        error: dict[str, str] = (await answered.json())["error"]
        return error


@pytest.mark.parametrize(
    ("kind", "instance", "said"),
    [
        ("both", "h:1", f"Invalid instance type. {KINDS}"),
        (None, "h:1", f"Invalid instance type. {KINDS}"),
        ([], "h:1", f"Invalid instance type. {KINDS}"),
        ("decode", "h", f"Invalid instance format. {PLACE}"),
        ("decode", 1, f"Invalid instance format. {PLACE}"),
        ("decode", "h:0", f"Invalid port number. {PLACE}"),
        ("decode", "http://h:1", f"Invalid instance address. {PLACE}"),
        ("decode", "::1:80", f"Invalid instance address. {PLACE}"),
    ],
)
async def test_what_is_no_instance_is_told_so(
    kind: object, instance: object, said: str
) -> None:
    async with http_cluster(Cluster(0, 0)) as proxy:
        body = msgspec.json.encode({"type": kind, "instance": instance})
        assert (await refusal(proxy, body))["message"] == said


@pytest.mark.parametrize("body", [b"[]", b"1", b'"decode"', b"null"])
async def test_a_body_that_is_no_object_is_told_what_it_has_to_be(body: bytes) -> None:
    async with http_cluster(Cluster(0, 0)) as proxy:
        for what in ("add", "remove"):
            said = (await refusal(proxy, body, what))["message"]
            assert "has to be a JSON object: {" in said


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", DEEP])
async def test_any_other_body_is_400(body: bytes) -> None:
    async with http_cluster(Cluster(0, 0)) as proxy:
        assert (await refusal(proxy, body))["message"]


@pytest.mark.parametrize("what", ["add", "remove"])
async def test_a_field_that_does_not_exist_is_told_of(what: str) -> None:
    """Else a mistyped `bootstrap_port` is as good as none."""
    body = {"type": "prefill", "instance": "h:1", "bootstrap_prt": 8998}
    async with http_cluster(Cluster(0, 0)) as proxy:
        error = await refusal(proxy, msgspec.json.encode(body), what)
        assert error["param"] == "bootstrap_prt"
        assert error["message"] == (
            "An instance has no field `bootstrap_prt`: its fields are type, instance, "
            "bootstrap_port, max_model_len."
        )


@pytest.mark.parametrize("field", ["max_model_len", "bootstrap_port"])
async def test_a_number_that_no_message_can_hold_is_refused_by_name(field: str) -> None:
    """Else the node is added here, and the other workers never hear of it."""
    body = {"type": "prefill", "instance": "h:1", field: 10**30}
    async with http_cluster(Cluster(0, 0)) as proxy:
        assert (await refusal(proxy, msgspec.json.encode(body)))["param"] == field
