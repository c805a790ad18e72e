"""All the families we serve, by the `model_type` of their configs. Torch-free."""

from engine.models.convolution_families import CONVOLUTIONS
from engine.models.dense_families import DENSE
from engine.models.falcon_families import FALCONS
from engine.models.family import Family
from engine.models.gemma4_families import GEMMAS4
from engine.models.hybrid_families import HYBRIDS
from engine.models.mamba_families import MAMBAS
from engine.models.mixer_families import MIXERS
from engine.models.moe_families import MIXTURES
from engine.models.vision_text_families import SEEING

FAMILIES: dict[str, Family] = {
    **DENSE,
    **GEMMAS4,
    **MIXTURES,
    **HYBRIDS,
    **MAMBAS,
    **MIXERS,
    **FALCONS,
    **CONVOLUTIONS,
    **SEEING,
}
LIST = ", ".join(f"{one.architecture} ({name})" for name, one in FAMILIES.items())
"""For error messages about models outside this list."""
