"""What transformers does not know by itself: Kimi K2 is DeepSeek-V3 under another name, and
Mistral 4 is a language model.
"""

MODEL_TYPE = "kimi_k2"


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
