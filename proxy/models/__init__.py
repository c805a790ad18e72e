"""The models behind this proxy, with their tokenizers and chat templates."""
