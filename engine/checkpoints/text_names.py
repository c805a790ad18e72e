"""Names of tensors and layers, as a model of text alone has them."""

WRAPPED = "model."  # the tensors of a model that was saved without its head lack this
TEXT_PARTS = ("language_model.", "model.language_model.")  # of models of text and images
_OTHERS = (
    *("vision_tower.", "multi_modal_projector.", "mm_projector.", "visual."),
    *("audio_tower.", "embed_vision.", "embed_audio."),
)
OTHER_PARTS = (*_OTHERS, *(WRAPPED + name for name in _OTHERS))


def text_name(name: str) -> str | None:
    """The plain name of a tensor or layer of a multimodal model; None: not of its text."""
    if name.startswith(TEXT_PARTS):
        ours = name.removeprefix("model.").removeprefix("language_model.")
        return ours if ours.startswith((WRAPPED, "lm_head.")) else WRAPPED + ours
    return None if name.startswith(OTHER_PARTS) else name
