"""Checkpoints small enough for a test: random weights, a real config and a real tokenizer.

They are made by transformers, so that what it reads and what we read is the same folder. The
weights are large enough that greedy choices are well separated.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.fakes.convolution_shapes import CONVOLUTION_SHAPE
from tests.fakes.gemma4_shapes import GEMMA4_SHAPE, GEMMA4_VISION
from tests.fakes.hybrid_shapes import HYBRID_SHAPE, HYBRID_VISION
from tests.fakes.mixer_shapes import MIXER_SHAPE
from tests.fakes.mixture_shapes import MIXTURE_SHAPE, STRETCHED
from tests.fakes.taught import WITH_IMAGES, name_as_published, teach_transformers
from tests.fakes.vision_text_shapes import VISION_PARTS, VISION_TEXT_SHAPE

VOCABULARY = 384
MAX_POSITIONS = 512
END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [END, USER, ASSISTANT]
CLOSING = 2  # the mark that ends reasoning, of a model that was taught to think
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CORPUS = (
    "A prefill node runs the prompt once, and a decode node fetches what it left behind.",
    "The quick brown fox jumps over the lazy dog; the dog is not amused, the fox is.",
    "Whoever is waiting for the last word should know that another word is on its way.",
    "Nothing here was learned from anybody: these sentences are only here to be merged.",
)
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 0,
}
LAST_WINDOWED = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
GEMMA3 = {
    "head_dim": 16,
    "sliding_window": 20,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 24,
}
# with windows in the families that have them: shorter than most prompts of the tests
FAMILY_SHAPE: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 20},
    "mistral3": {"model_type": "mistral", "head_dim": 16, "sliding_window": 20},
    "qwen2": LAST_WINDOWED,
    "qwen3": {"head_dim": 16, **LAST_WINDOWED},
    "ministral": {"head_dim": 8, "sliding_window": 20},
    "ministral3": {"head_dim": 16, "rope_parameters": STRETCHED},
    "phi3": {
        "pad_token_id": 0,
        "sliding_window": 20,
        "rope_parameters": {
            "rope_theta": 1e4,
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
        },
    },
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 24},
    "gemma3_text": GEMMA3,
    "gemma3": GEMMA3,
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.2,
        "logits_scaling": 3.0,
    },
    "smollm3": {
        "no_rope_layer_interval": 2,
        "pad_token_id": 0,
        "use_sliding_window": True,
        "sliding_window": 20,
    },
    "olmo2": {},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20},
    "glm": {"head_dim": 16, "pad_token_id": 0},
    "glm4": {"head_dim": 16, "pad_token_id": 0},
    "ernie4_5": {"head_dim": 16},
    "helium": {"head_dim": 8, "pad_token_id": 0},
    "seed_oss": {"head_dim": 16},
    **MIXTURE_SHAPE,
    "exaone4": {"sliding_window": 20, "sliding_window_pattern": 2},
    **VISION_TEXT_SHAPE,
    **HYBRID_SHAPE,
    **MIXER_SHAPE,
    **CONVOLUTION_SHAPE,
    **GEMMA4_SHAPE,
}
GENERATES, SEEING_AUTO = "AutoModelForCausalLM", "AutoModelForImageTextToText"
AROUND = ("tie_word_embeddings",)  # said of the whole model as well as of its text part
# what models of text and images have beside their text_config, which is what is shaped above
SEEING: dict[str, dict[str, Any]] = {
    "gemma3": {
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 8,
            "image_size": 28,
            "patch_size": 14,
        },
    },
    **VISION_PARTS,
    **HYBRID_VISION,
    **GEMMA4_VISION,
}


def make_checkpoint(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: str = "float32",
    max_shard_size: str = "1GB",
    auto: str = GENERATES,
    **config_overrides: object,
) -> Path:
    """Write a whole model folder; equal arguments give equal weights. Answers `folder`.

    Overrides carry transformers' names: `tie_word_embeddings=True`, `rope_parameters={...}`,
    `num_key_value_heads=1`. `auto` is its class for models with this head. For keys as older
    configs had them, see `edit_config`.
    """
    import transformers  # slow to load

    teach_transformers()
    settings = SHAPE | FAMILY_SHAPE.get(family, {}) | config_overrides
    if family in SEEING:
        around = {key: config_overrides[key] for key in AROUND if key in config_overrides}
        settings = {"text_config": settings, **SEEING[family], **around}
        auto = SEEING_AUTO if auto == GENERATES else auto
    config = transformers.AutoConfig.for_model(family, **settings)
    model = getattr(transformers, auto).from_config(config)
    _fill(model, model.config.get_text_config().initializer_range, seed)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    if family == WITH_IMAGES:
        name_as_published(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of VOCABULARY entries that any text survives, and a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def teach_to_think(folder: Path) -> Path:
    """Two special tokens are the marks of reasoning, and prompts end with the opening one."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text()
        for before, after in ((USER, "<think>"), (ASSISTANT, "</think>")):
            text = text.replace(before, after)
        (folder / name).write_text(text.replace("{{ '</think>' }}", "{{ '<think>' }}"))
    return folder


def edit_config(folder: Path, changes: Mapping[str, object]) -> None:
    """Change keys of config.json in place; a key that is to be None is taken out."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    gone = {key for key, value in changes.items() if value is None}
    kept = {key: value for key, value in config.items() if key not in gone}
    file.write_text(json.dumps(kept, indent=2))


def _fill(model: torch.nn.Module, spread: float, seed: int) -> None:
    """Random everywhere, norms around one, so that no weight is there for nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, spread, generator=generator)
            if "norm" in name or name.endswith("scale"):
                weight.add_(1)
            if name.endswith("router.scale"):  # of what is divided by as much, so that few tie
                weight.mul_(len(weight) ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "layer_scalar")):
                buffer.normal_(0, spread, generator=generator)
            if name.endswith("layer_scalar"):
                buffer.add_(1)
