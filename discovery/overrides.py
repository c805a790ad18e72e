"""What the proxy overrides in registrations, by address: a node's state and its model."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from discovery.registration import Registration, State

MOST = 4096


@dataclass(slots=True)
class Overrides:
    """Overrides by address; beyond MOST the oldest are dropped."""

    _held: dict[str, None] = field(default_factory=dict)
    _models: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)

    def of(self, registration: Registration) -> Registration:
        """The registration with its overrides."""
        address, changes = registration.http_address, dict[str, Any]()
        if address in self._held:
            changes["state"] = State.DRAINING
        if registration.model is None and address in self._models:
            changes["model"], longest = self._models[address]
            changes["max_model_len"] = registration.max_model_len or longest
        return msgspec.structs.replace(registration, **changes) if changes else registration

    def hold(self, address: str) -> None:
        """Treat the node at this address as draining."""
        _put(self._held, address, None)

    def release(self, address: str) -> None:
        """Use the node's own state again."""
        self._held.pop(address, None)

    def name(self, address: str, model: str | None, max_model_len: int | None) -> bool:
        """Set the model and context length at an address, for nodes that do not register a
        model.

        Returns False if that was known already.
        """
        known = self._models.get(address) == (model, max_model_len)
        _put(self._models, address, (model, max_model_len))
        return not known

    def names(self, address: str) -> bool:
        """Whether a model was set for this address."""
        return address in self._models


def _put(entries: dict[str, Any], address: str, value: object) -> None:
    entries[address] = value
    while len(entries) > MOST:
        del entries[next(iter(entries))]
