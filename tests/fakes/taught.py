"""What transformers does not know by itself of the models of the tests.

Kimi K2 is DeepSeek-V3 under another name, and Mistral 4 is a language model. Kimi K2.5 is
known, but when it is saved, names of the text part's layers are not as published.
"""

from pathlib import Path

MODEL_TYPE, WITH_IMAGES = "kimi_k2", "kimi_k25"
SAVED, PUBLISHED = "language_model.model.blocks.", "language_model.model.layers."


def teach_transformers() -> None:
    """Let it read both as what they are; the second time nothing happens."""
    import transformers  # slow to load
    from transformers import conversion_mapping
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    if MODEL_TYPE in CONFIG_MAPPING:
        return

    class KimiK2Config(transformers.DeepseekV3Config):  # type: ignore[no-untyped-call]
        model_type = MODEL_TYPE

    class DeepseekV3ForCausalLM(deepseek.DeepseekV3ForCausalLM):  # type: ignore[no-untyped-call]
        config_class = KimiK2Config

    transformers.AutoModelForCausalLM.register(
        transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True
    )
    transformers.AutoConfig.register(MODEL_TYPE, KimiK2Config)
    transformers.AutoModelForCausalLM.register(KimiK2Config, DeepseekV3ForCausalLM)
    names = conversion_mapping.get_checkpoint_conversion_mapping("deepseek_v3")  # type: ignore[no-untyped-call]
    conversion_mapping.register_checkpoint_conversion_mapping(MODEL_TYPE, names)


def name_as_published(folder: Path) -> None:
    """Rename what transformers has saved of a Kimi K2.5, in one file."""
    from safetensors.torch import load_file, save_file  # slow to load

    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    assert any(name.startswith(SAVED) for name in tensors)
    renamed = {name.replace(SAVED, PUBLISHED): one for name, one in tensors.items()}
    save_file(renamed, file, {"format": "pt"})
