"""The files of a LoRA adapter as PEFT saves it. Torch-free."""

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = CONFIG, WEIGHTS
