"""Loads an encoder checkpoint into an engine; the model runs by transformers' code."""

import re
import sys
from typing import Any

import torch

from engine.api import EngineInfo
from engine.checkpoints.checkpoint import Checkpoint, fingerprint_of
from engine.errors import UnusableCheckpoint
from engine.models.family import classifies
from engine.models.transformers_model import loading_errors
from engine.pooling.encoder_engine import EncoderEngine, EncoderModel
from engine.pooling.encoders import longest_prompt
from engine.pooling.loading import load_layers
from engine.pooling.pooler import Pooler
from engine.pooling.reading import read_pooling
from engine.scheduling.sequence_manager import Limits
from engine.settings import EngineConfig

UNUSED = "pooler."  # a head of BERT's that many checkpoints leave out, and that we never ask
OF_LAYERS = re.compile(r"(^|\.)layers?\.\d+\.")  # heads may be missing, but not these
HEADS = ("Model", "ForMaskedLM", "ForPreTraining", "ForCausalLM", "ForSequenceClassification")
"""Suffixes of architectures: no head, pretraining heads, which are ignored, a classifier's."""


def load_encoder(
    checkpoint: Checkpoint, config: EngineConfig, dtype: torch.dtype, limits: Limits
) -> EncoderEngine:
    """Load an encoder; raises UnusableCheckpoint, naming what is missing."""
    _refuse_other_heads(checkpoint)
    pooling = read_pooling(checkpoint.folder, checkpoint.config)
    longest = longest_prompt(checkpoint.folder, checkpoint.config)
    most = config.max_model_len or longest
    if most > longest:
        raise UnusableCheckpoint(f"--max-model-len {most} is more than the model's {longest}")
    model = _model(checkpoint, dtype, torch.device(config.device))
    name = str(dtype).removeprefix("torch.")
    parts = checkpoint.made_of()
    named = fingerprint_of(parts)
    info = EngineInfo(named, most, 1, name, name, 1, (), pooling, made_of=parts)
    layers = load_layers(checkpoint.folder, pooling, model.device)
    return EncoderEngine(info, model, limits, Pooler(pooling, layers=layers))


def _refuse_other_heads(checkpoint: Checkpoint) -> None:
    """Refuse models trained to tag words or answer questions: their vectors are not useful."""
    names = checkpoint.config.get("architectures") or ()
    if odd := [name for name in names if not str(name).endswith(HEADS)]:
        raise UnusableCheckpoint(f"config.json: {odd[0]} makes neither vectors nor classes")


def _model(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> EncoderModel:
    import transformers  # slow to load, and for these models only

    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    files = checkpoint.weight_files  # safetensors, or nothing
    auto: Any = transformers.AutoModel
    if classifies(checkpoint.config):
        auto = transformers.AutoModelForSequenceClassification
    try:
        module, told = auto.from_pretrained(
            checkpoint.folder, dtype=dtype, output_loading_info=True, use_safetensors=True
        )
    except loading_errors() as error:
        raise UnusableCheckpoint(f"{files[0].parent}: {error}") from error
    if missing := sorted(name for name in told["missing_keys"] if UNUSED not in name):
        raise UnusableCheckpoint(f"tensor {missing[0]} is missing")
    if layers := sorted(filter(OF_LAYERS.search, told["unexpected_keys"])):
        raise UnusableCheckpoint(f"{len(layers)} tensors too many, such as {layers[0]}")
    known = module.config.get_text_config()
    segments = getattr(known, "type_vocab_size", 0) or 0
    sizes = known.vocab_size, known.hidden_size, segments, known.pad_token_id or 0
    return EncoderModel(module.to(device).eval(), *sizes, device)
