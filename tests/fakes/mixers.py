"""What configs of models whose layers have one part each may ask for, case by case."""

from math import inf
from typing import Any

from tests.fakes.families import Case

KINDS = "layers_block_type"
STATELESS: dict[str, Any] = {KINDS: ["full_attention", "mlp", "moe", "full_attention", "mlp"]}
OLD_KINDS = {KINDS: ["mamba", "mlp", "attention", "moe", "mamba"]}
LETTERS = {KINDS: None, "hybrid_override_pattern": "M-*EM", "num_hidden_layers": 5}
GROUPS = {"n_group": 4, "topk_group": 2}
LATENTS: dict[str, Any] = {"moe_latent_size": 16}
BIASES = {"mlp_bias": True, "use_bias": True}
LARGE = {"ssm_state_size": 20, "mamba_head_dim": 24}
NAMED = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
MIXER_CASES = [
    Case("kinds in letters", "nemotron_h", edits=LETTERS, block_size=7),
    Case("kinds of old", "nemotron_h", edits=OLD_KINDS),
    Case("no layer with a state", "nemotron_h", STATELESS, block_size=5),
    Case("no layer with an MLP", "nemotron_h", {KINDS: ["full_attention"] * 2}),
    Case("biases", "nemotron_h", BIASES),
    Case("groups of experts", "nemotron_h", GROUPS, block_size=5),
    Case("one expert each", "nemotron_h", {"num_experts_per_tok": 1}),
    Case("weights that do not add up to one", "nemotron_h", {"norm_topk_prob": False}),
    Case("experts over latents", "nemotron_h", {**LATENTS, **GROUPS}),
    Case("experts over latents, biases", "nemotron_h", {**LATENTS, **BIASES}),
    Case("one group", "nemotron_h", {"n_groups": 1}),
    Case("a group for each head", "nemotron_h", {"n_groups": 4}),
    Case("states larger than a block", "nemotron_h", LARGE, block_size=5),
    Case("convolution over two tokens", "nemotron_h", {"conv_kernel": 2}),
    Case("no bias of the convolution", "nemotron_h", {"use_conv_bias": False}),
    Case("steps without a limit", "nemotron_h", edits={"time_step_limit": [0.0, inf]}),
    Case("layers of multi-token prediction named", "nemotron_h", edits=NAMED),
]
