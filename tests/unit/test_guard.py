"""Clients with any of the keys come in, admins with theirs, everybody to the open paths."""

import pytest

from proxy.admin.guard import Forbidden, Guard, Unauthorized

GUARD = Guard(("one", "two"), "admin")
V1, ADD = "/v1/completions", "/instances/add"


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "Bearer  one "])
def test_a_key_opens(header: str) -> None:
    GUARD.check(V1, header, None)


@pytest.mark.parametrize(
    "path",
    ["/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/org/name"],
)
def test_a_clients_key_may_stand_alone_where_clients_of_messages_ask(path: str) -> None:
    assert GUARD.check(path, None, "two").name == "api-key-2"
    assert GUARD.check(path, "Bearer one", None).name == "api-key-1"
    assert GUARD.check(path, "Bearer one", "two").name == "api-key-1"
    assert GUARD.check(path, "Bearer none", "two").name == "api-key-2"
    for wrong in ("admin", "", "three", "Bearer two", None):
        with pytest.raises(Unauthorized, match="x-api-key"):
            GUARD.check(path, "Bearer none", wrong)


@pytest.mark.parametrize("path", [V1, "/v1/modelsX", "/v1/messagesX", "/v1/responses"])
def test_nor_may_it_anywhere_else(path: str) -> None:
    with pytest.raises(Unauthorized, match=r"Bearer KEY\.$"):
        GUARD.check(path, None, "two")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer None",
        "one",
        "Basic one",
        "Digest one",
        "Bearer önë",
    ],
)
@pytest.mark.parametrize("path", [V1, "/status", "/v1/models", "/nowhere"])
def test_nothing_else_does(path: str, header: str | None) -> None:
    with pytest.raises(Unauthorized):
        GUARD.check(path, header, None if path == "/status" else "admin")


@pytest.mark.parametrize("path", ["/status", "/get_loads", "/metrics/targets", "/requests/r1"])
def test_admins_may_look_as_clients_may(path: str) -> None:
    assert GUARD.check(path, None, "admin").name == "admin"
    assert GUARD.check(path, "Bearer two", None).name == "api-key-2"
    with pytest.raises(Unauthorized):
        GUARD.check(path, None, "wrong")


@pytest.mark.parametrize("header", [None, "Bearer None", "Bearer EMPTY"])
def test_without_keys_any_header_will_do(header: str | None) -> None:
    Guard().check(V1, header, None)


@pytest.mark.parametrize(
    "path", ["/health", "/metrics", "/healthcheck", "/liveness", "/readiness"]
)
def test_who_looks_after_it_needs_no_key(path: str) -> None:
    GUARD.check(path, None, None)


@pytest.mark.parametrize("given", [None, "", "wrong", "ädmin"])
@pytest.mark.parametrize("path", [ADD, "/instances", "/workers", "/workers/w", "/instances/x"])
def test_only_the_admins_key_is_the_admins(path: str, given: str | None) -> None:
    GUARD.check(path, None, "admin")
    with pytest.raises(Forbidden):
        GUARD.check(path, "Bearer one", given)


@pytest.mark.parametrize("path", ["/instancesx", "/workers.json"])
def test_another_path_is_another_path(path: str) -> None:
    assert GUARD.check(path, "Bearer one", None).name == "api-key-1"


@pytest.mark.parametrize("given", [None, "", "None"])
def test_without_an_admins_key_nobody_is_admin(given: str | None) -> None:
    with pytest.raises(Forbidden, match="ADMIN_API_KEY"):
        Guard(("one",)).check(ADD, "Bearer one", given)
