"""What an engine process inherits, and what it does not."""

import pytest

from node.engine_environment import engine_environment


def test_settings_and_keys_stay_outside() -> None:
    given = {"PATH": "/bin", "PDSERVE_API_KEY": "secret", "HF_HOME": "/models"}
    told = engine_environment(given)
    assert {"PATH": "/bin", "HF_HOME": "/models"}.items() <= told.items()
    assert not any(name.startswith("PDSERVE_") for name in told)


def test_threads_wait_briefly() -> None:
    assert int(engine_environment({})["GOMP_SPINCOUNT"]) < 300_000


@pytest.mark.parametrize(
    "set_by_hand", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}]
)
def test_who_has_said_how_long_is_not_contradicted(set_by_hand: dict[str, str]) -> None:
    assert engine_environment(set_by_hand) == set_by_hand
