"""A proxy's models with adapters: who has one gets its requests, and nobody else does."""

from collections import Counter

import pytest

from api.errors import ModelNotFound
from api.models import find_model, list_models
from deploy.status import ModelStatus, _adapters
from discovery.node import Node
from discovery.registration import Registration, Role
from proxy.admin.status import cluster_status, served_models
from proxy.models.catalogue import ModelSettings
from proxy.models.model_pools import ConfiguredNames, model_pools
from tests.fakes.catalogue import Rig

P, D = Role.PREFILL, Role.DECODE
NOBODYS = ConfiguredNames(frozenset(), ("model",))


def upgrading(rig: Rig | None = None) -> Rig:
    """Three old nodes of each kind, and one of each with the adapter sql."""
    rig = rig or Rig()
    for number in range(3):
        rig.beat(f"d:{number}")
        rig.beat(f"p:{number}", P)
    rig.beat("d:9", fingerprint="g", adapters=("sql",))
    rig.beat("p:9", P, fingerprint="g", adapters=("sql",))
    return rig


async def test_while_nodes_are_upgraded_only_the_new_ones_are_asked_for_the_adapter() -> None:
    rig = upgrading()
    found = [await rig.find("sql", rid=f"r{number}") for number in range(100)]
    assert {(one.key, one.adapter("sql")) for one in found} == {(("m", "g"), "sql")}
    shares = Counter([(await rig.find("m", rid=f"r{number}")).key for number in range(400)])
    assert 60 < shares["m", "g"] < 140
    assert (await rig.find("m")).adapter("m") is None


async def test_who_names_no_model_gets_the_base_model() -> None:
    rig = upgrading()
    found = [await rig.find(None, rid=f"r{number}") for number in range(100)]
    assert {one.adapter(None) for one in found} == {None}
    assert {one.resolve_name(None) for one in found} == {"m"}


async def test_an_unknown_name_is_404_and_adapters_are_among_those_there_are() -> None:
    with pytest.raises(ModelNotFound, match=r"`law` does not exist\. There are: m, sql$"):
        await upgrading().find("law")


async def test_an_adapter_whose_nodes_are_gone_is_404_though_its_base_model_is_there() -> None:
    rig = upgrading()
    rig.catalogue.model_wait.wait_s = 30.0
    await rig.find("sql")
    for address in ("d:9", "p:9"):
        rig.registry.remove(address)
    assert (await rig.find("sql")).key == ("m", "g")  # and then waits for a node
    rig.now += 31
    for number in range(3):
        rig.beat(f"d:{number}")
    with pytest.raises(ModelNotFound):
        await rig.find("sql")


async def test_names_that_the_proxy_gives_its_model_hide_no_adapter() -> None:
    own = ModelSettings(ConfiguredNames(frozenset({"m", "told"}), ("told",)))
    rig = upgrading(Rig(own))
    assert (await rig.find("sql")).adapter("sql") == "sql"
    assert (await rig.find(None)).resolve_name(None) == "told"
    with pytest.raises(ModelNotFound, match="There are: sql, told"):
        await rig.find("m")


async def test_a_name_that_the_proxy_gives_its_model_is_never_an_adapters_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing can tell the two apart; the operator hears of it once."""
    own = ModelSettings(ConfiguredNames(frozenset({"m", "sql"}), ("sql",)))
    rig = upgrading(Rig(own))
    assert (await rig.find("sql")).adapter("sql") is None
    rig.beat("d:10", fingerprint="g", adapters=("sql",))
    await rig.find("sql")
    told = [one.message for one in caplog.records if "one of its adapters" in one.message]
    assert len(told) == 1


async def test_an_adapter_that_is_called_as_another_model_shares_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.beat("d:1", adapters=("sql",))
    rig.beat("d:2", model="sql")
    found = [await rig.find("sql", rid=f"r{number}") for number in range(100)]
    assert {(one.key, one.adapter("sql")) for one in found} == {
        (("m", "f"), "sql"),
        (("sql", "f"), None),
    }
    told = [one.message for one in caplog.records if "2 models that are not" in one.message]
    assert [message.split()[0] for message in told] == ["sql"]


def test_a_pool_has_what_all_its_nodes_have() -> None:
    """Equal fingerprints mean equal adapters; a node that says otherwise is not asked."""
    said = [("b", "a", "c"), ("a", "b")]
    nodes = [
        Node(Registration(D, f"h:{n}", "h:0", f"n{n}", "m", "f", adapters=names), 0.0)
        for n, names in enumerate(said)
    ]
    assert model_pools(nodes, NOBODYS)["m", "f"].adapters == ("b", "a")


def test_each_adapter_is_listed_once_with_its_model() -> None:
    rig = upgrading()
    told = [(card.id, card.root, card.parent) for card in list_models(rig.catalogue).data]
    assert told == [("m", "m", None), ("sql", "sql", "m")]
    assert find_model(rig.catalogue, "sql").max_model_len == 100


def test_operators_see_which_nodes_and_models_have_which() -> None:
    rig = upgrading()
    status = cluster_status(rig.registry, rig.health, now=rig.now, in_flight=0)
    told = {node["node_id"]: node["adapters"] for node in status["nodes"]}
    assert (told["d:0"], told["d:9"]) == ([], ["sql"])
    models = served_models(rig.catalogue.listed())
    assert [one["adapters"] for one in models] == [[], ["sql"]]
    line = _adapters(ModelStatus(("m", "nick"), None, ("sql", "law"), "f00"))
    assert line == "m (f00) has the LoRA adapters sql, law"
