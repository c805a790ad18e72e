"""A file of keys says who may come in and have what; a broken one says what is wrong."""

from hashlib import sha256

import msgspec
import pytest

from proxy.admin.keys import KeyRing, MalformedKeys, read_keys
from proxy.admission.limits import ApiCaller, KeyLimits

SECRET = "sk-secret"
DIGEST = sha256(b"sk-digest").hexdigest()
TOML = f"""
[[keys]]
name = "web"
key = "{SECRET}"
limits = {{ max_requests = 5, max_tokens = 1000, weight = 2.0 }}

[[keys]]
name = "batch"
sha256 = "{DIGEST}"

[[keys]]
name = "ops"
key = "sk-ops"
admin = true
"""


def read(text: str, *, parts: int = 1) -> KeyRing:
    return read_keys(text.encode(), is_json=False, parts=parts)


def test_keys_have_names_and_limits() -> None:
    ring = read(TOML)
    limits = KeyLimits(max_requests=5, max_tokens=1000, weight=2.0)
    assert ring.client(SECRET) == ApiCaller("web", limits)
    assert ring.client("sk-digest") == ApiCaller("batch")
    assert ring.admin("sk-ops") == ApiCaller("ops")


def test_one_door_is_not_the_other() -> None:
    ring = read(TOML)
    for given in ("sk-ops", "", DIGEST, "SK-SECRET", SECRET + " ", "\udcff"):
        assert ring.client(given) is None
    assert ring.admin(SECRET) is None


def test_json_says_the_same() -> None:
    keys = [{"name": "web", "key": SECRET, "limits": {"max_requests": 5}}]
    ring = read_keys(msgspec.json.encode({"keys": keys}), is_json=True)
    assert ring.client(SECRET) == ApiCaller("web", KeyLimits(max_requests=5))


def test_several_processes_share_what_a_key_may_have() -> None:
    found = read(TOML, parts=2).client(SECRET)
    assert found
    assert found.limits == KeyLimits(max_requests=3, max_tokens=500, weight=2.0)


def test_no_key_is_in_what_can_be_logged() -> None:
    assert SECRET not in repr(read(TOML))
    assert repr(sha256(SECRET.encode()).digest()) not in repr(
        next(iter(read(TOML).clients.values()))
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "keys"),
        ("keys = []", "keys"),
        ("[[keys]]", "name"),
        ('[[keys]]\nname = "a"', "a needs either key or sha256"),
        (f'[[keys]]\nname = "a"\nkey = "{SECRET}"\nsha256 = "{DIGEST}"', "either key or"),
        (
            f'[[keys]]\nname = "a"\nkey = "{SECRET} "',
            "keys[0].key: expected 1 to 512",
        ),
        (f'[[keys]]\nname = "a b"\nkey = "{SECRET}"', "keys[0].name: expected 1 to 64"),
        (f'[[keys]]\nname = "a"\nsha256 = "{SECRET}"', "keys[0].sha256: expected 64 hex"),
        (f'[[keys]]\nname = "a"\nkey = "{SECRET}"\nlimit = 3', "limit"),
        (
            f'[[keys]]\nname = "a"\nkey = "{SECRET}"\nlimits = {{ max_requests = 0 }}',
            "max_requ",
        ),
        (f'[[keys]]\nname = "a"\nkey = "{SECRET}', ""),
        (TOML + f'[[keys]]\nname = "web"\nkey = "{SECRET}2"', "two of the name web"),
        (TOML + f'[[keys]]\nname = "other"\nkey = "{SECRET}"', "web and other are the same"),
        ("\0", ""),
    ],
)
def test_a_broken_file_is_told_by_its_field_and_without_its_keys(text: str, said: str) -> None:
    with pytest.raises(MalformedKeys) as refused:
        read(text)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 100_000, b'{"keys": 1}'])
def test_so_is_broken_json(data: bytes) -> None:
    with pytest.raises(MalformedKeys):
        read_keys(data, is_json=True)
