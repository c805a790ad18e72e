"""The parts of one layer, read, with its norms around them."""

from operator import add

from msgspec.structs import replace as with_fields

from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.contract import DualOutputNorms, Linear, QuantizedOutputKernels
from engine.models.attention_weights import read_attention
from engine.models.config import ModelConfig
from engine.models.delta_net import read_delta_net
from engine.models.experts import SparseMlp, StackedExperts
from engine.models.experts_beside import parallel_mlp
from engine.models.few_row_experts import few_rows_mlp
from engine.models.few_rows import FusedProducts, few_rows_attention
from engine.models.grouped_attention import GroupedAttention
from engine.models.latent_attention import LatentAttention
from engine.models.layer import Attention, FewRowsAttention, FewRowsMlp, Layer, Mlp
from engine.models.layer_end_weights import read_layer_end
from engine.models.mamba import Mamba, read_mamba
from engine.models.mlp import GatedMlp, UngatedMlp
from engine.models.mlp_weights import fused_gates, read_mlp
from engine.models.norm import LayerNorm, Norm, norm_before
from engine.models.norm_weights import read_norm
from engine.models.short_convolution import ShortConvolution, read_short_convolution
from engine.models.side_by_side import SideBySide
from engine.models.tensor_names import NormNames
from engine.models.tensor_parallel import ParallelAttention


def read_layer(loader: WeightLoader, config: ModelConfig, index: int) -> Layer:
    """Read layer `index`: its attention, MLP and norms."""
    at, names = f"model.layers.{index}.", _norms_of(config, index)

    def norm(name: str | None) -> Norm | None:
        if name is None:
            return None
        return read_norm(loader, config, f"{at}{name}", config.hidden_size)

    def before(part: Attention | Mlp | None, name: str | None) -> LayerNorm | None:
        made = norm(name)
        return made and norm_before(_rounding_for(loader, part), made)

    attention, mlp = _read_parts(loader, config, index, at)
    norms = before(attention, names.attention), before(mlp, names.mlp)
    few = _few_rows(loader, config, (attention, mlp), norms)
    if loader.group is not None:
        attention = attention and ParallelAttention(attention, loader.group)
        mlp = mlp and parallel_mlp(mlp, loader.group)
    return Layer(
        attention=attention,
        mlp=mlp,
        attention_norm=norms[0],
        attention_output_norm=norm(names.attention_output),
        mlp_norm=norms[1],
        mlp_output_norm=norm(names.mlp_output),
        residual_scale=config.residual_scale,
        few_attention=few[0],
        few_mlp=few[1],
        end=read_layer_end(loader, config, at),
    )


def _norms_of(config: ModelConfig, index: int) -> NormNames:
    """The names of a layer's norms: around each part that it has."""
    plan, names = config.layers[index], config.norms
    if not plan.mixes:
        names = with_fields(names, attention=None, attention_output=None)
    if not plan.has_mlp:
        names = with_fields(names, mlp=None, mlp_output=None)
    if plan.sparse and config.experts is not None and config.experts.beside:
        names = with_fields(names, mlp=None)  # each of the two has its own
    return names


def _read_parts(
    loader: WeightLoader, config: ModelConfig, index: int, at: str
) -> tuple[Attention | None, Mlp | None]:
    """The attention and the MLP of the layer under `at`, if it has them."""
    plan, attention, mlp = config.layers[index], None, None
    if plan.mixes:
        attention = _read_mixing(loader, config, index, at)
    if plan.has_mlp:
        mlp = read_mlp(loader, config, index)
    return attention, mlp


def _read_mixing(loader: WeightLoader, config: ModelConfig, index: int, at: str) -> Attention:
    """The attention of the layer under `at`, or what it has instead or beside it."""
    plan = config.layers[index]
    if not plan.recurrent:
        return read_attention(loader, config, index, f"{at}self_attn.")
    recurrent = _read_recurrent(loader, config, index, at)
    if not plan.has_attention:
        return recurrent
    attention = read_attention(loader, config, index, f"{at}self_attn.")
    added = add if loader.kernels is None else loader.kernels.added
    return SideBySide(attention, recurrent, added)


def _read_recurrent(
    loader: WeightLoader, config: ModelConfig, index: int, at: str
) -> Attention:
    before = sum(layer.recurrent for layer in config.layers[:index])
    if config.mamba is not None:
        return read_mamba(loader, config, config.mamba, before, f"{at}mamba.")
    if config.convolution is not None:
        return read_short_convolution(loader, config, config.convolution, before, f"{at}conv.")
    assert config.delta is not None, "or no layer is recurrent"
    return read_delta_net(loader, config, config.delta, before, f"{at}linear_attn.")


def _few_rows(
    loader: WeightLoader,
    config: ModelConfig,
    parts: tuple[Attention | None, Mlp | None],
    norms: tuple[LayerNorm | None, LayerNorm | None],
) -> tuple[FewRowsAttention | None, FewRowsMlp | None]:
    """A layer's fused halves, which have no norm behind them, and are on one rank."""
    kernels, names = loader.kernels, config.norms
    products = None if kernels is None else kernels.few_row_products
    if kernels is None or products is None or loader.group is not None:
        return None, None
    active = None if loader.adapters is None else loader.adapters.active
    fused = FusedProducts(products, config.residual_scale, active)
    attention, mlp = None, None
    if names.attention_output is None:
        attention = few_rows_attention(fused, parts[0], norms[0])
    if names.mlp_output is None:
        mlp = few_rows_mlp(fused, parts[1], norms[1], fused_gates(config), kernels)
    return attention, mlp


def _rounding_for(
    loader: WeightLoader, part: Attention | Mlp | None
) -> QuantizedOutputKernels | DualOutputNorms | None:
    """The kernels that quantize a part's input; with whole rows as well if it has a router."""
    if isinstance(part, SideBySide):
        one, other = (_rounding_for(loader, each) for each in (part.attention, part.recurrent))
        return one if one == other else None
    if not isinstance(part, SparseMlp):
        return loader.quantized_kernels_for(_only_product(part))
    experts = part.experts
    return loader.dual_norms_for(
        experts.gate_up if isinstance(experts, StackedExperts) else None
    )


def _only_product(part: Attention | Mlp | None) -> Linear | None:
    """The only product that gets a part's input; None if there are several."""
    if isinstance(part, GroupedAttention):
        return part.query_key_value
    if isinstance(part, LatentAttention | Mamba | ShortConvolution):
        return part.inward
    if isinstance(part, UngatedMlp):
        return part.up
    return part.gate_up if isinstance(part, GatedMlp) else None
