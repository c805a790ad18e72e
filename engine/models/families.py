"""All the families we serve, by the `model_type` of their configs. Torch-free."""

from engine.models.dense_families import DENSE
from engine.models.family import Family

FAMILIES: dict[str, Family] = {**DENSE}
