"""A step on a device: its numbers sent by one copy, then launches, or graphs of them."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial

import torch
from torch import Tensor

from engine.attention.device_batch import LEAST_EXPANDED, DeviceBatch
from engine.attention.kv_memory import KvMemory
from engine.attention.paged import Span
from engine.attention.plan import Plan, SamplingPlan
from engine.models.decoder import adapters_of
from engine.models.model import Model
from engine.running.accelerator import Accelerator
from engine.running.device_sampler import KernelSampler
from engine.running.graphs import Graphs, Step, fitting_size, graph_sizes
from engine.running.piecewise import (
    Call,
    CutBatch,
    Forward,
    PiecewiseGraphs,
    piece_sizes,
)
from engine.running.recorder import Cut, Recorder
from engine.running.runner import ForwardOutput
from engine.running.staging import BatchSize, DeviceFields, Staging, num_bytes, table_blocks
from engine.running.warming import row_counts, warm_up_sampling, with_progress
from engine.scheduling.sequence_manager import Limits
from engine.sharding.group import RankGroup

MOST_PICKS = 129  # rows of a warm-up with logits: more rows launch no other kernels
MOST_NARROW = 129  # rows of a warm-up over one block: longer chunks have the same tiles


@dataclass(slots=True)
class DeviceRunner:
    """See Runner. Waits for nothing but the previous copy out of the host's staging buffer.

    `drawn` has the tokens that were drawn last: its own, or those of the runner that `of` is.
    In a `group` of ranks, rank 0 samples, and broadcasts the tokens on the device.
    """

    model: Model
    memory: KvMemory
    accelerator: Accelerator
    limits: Limits
    group: RankGroup | None = None
    of: InitVar[Tensor | None] = None
    staging: Staging = field(init=False)
    drawn: Tensor = field(init=False)  # [sequences] int64
    device_sampler: KernelSampler | None = None
    graphs: Graphs | None = None
    pieces: PiecewiseGraphs | None = None
    adapter_graphs: Graphs | None = None
    adapter_pieces: PiecewiseGraphs | None = None

    def __post_init__(self, of: Tensor | None) -> None:
        """Allocate the staging buffers for the largest batch."""
        count = self._num_adapters, self.memory.state_blocks
        most = _largest(self.limits, self._most_blocks, *count)
        device = self.memory.block_rows.device
        self.staging = Staging(most, self.memory.block_size, device)
        if of is None:
            of = torch.zeros(most.sequences, dtype=torch.int64, device=device)
        self.drawn = of
        if (kernels := self.accelerator.drawing) is not None:
            self.device_sampler = KernelSampler(
                self.accelerator, kernels, self.drawn, self.group
            )

    def run(self, plan: Plan) -> ForwardOutput:
        """See Runner."""
        adapted = self._num_adapters > 0 and plan.has_adapters
        graphs = self.adapter_graphs if adapted else self.graphs
        count = len(plan.singles)
        graph = None if graphs is None else fitting_size(graphs.sizes, count, len(plan.chunks))
        if graphs is not None and graph is not None and plan.picks:  # it makes all logits
            fields = self.staging.stage(self._graph_size(graph), plan)
            ran = graphs.replay(graph, count)
            if ran.logits is not None and not plan.picks_all:
                picks = fields.picks[: len(plan.picks)]
                ran = ForwardOutput(ran.hidden, ran.logits[picks])
        else:
            fields, hidden = self._launch(plan, adapted=adapted)
            picked = hidden if plan.picks_all else hidden[fields.picks[: len(plan.picks)]]
            ran = ForwardOutput(hidden, self.model.logits(picked) if plan.picks else None)
        return ran if plan.sampling is None else self._drawn(ran, fields, plan.sampling)

    def _launch(self, plan: Plan, *, adapted: bool) -> tuple[DeviceFields, Tensor]:
        """Run kernel by kernel, or with piecewise graphs if the batch has few tokens."""
        singles, size = len(plan.singles), self._size_of(plan)
        longest = max((span.length for span in plan.chunks), default=0)
        pieces = self.adapter_pieces if adapted else self.pieces
        rows = None if pieces is None else pieces.fitting_size(size.tokens)
        if pieces is None or rows is None:
            fields = self.staging.stage(size, plan)
            self._set_adapters(fields if adapted else None)
            return fields, self._forward(fields, singles, longest, plan.chunks)
        fields = self.staging.stage(size._replace(tokens=rows), plan)
        batch = self._batch(fields, singles, longest)
        return fields, pieces.replay(rows, batch)[: size.tokens]

    def _drawn(
        self, ran: ForwardOutput, fields: DeviceFields, drawing: SamplingPlan
    ) -> ForwardOutput:
        """Sample a token from each row of logits, if there are any and this runner samples."""
        if self.device_sampler is None or ran.logits is None:
            return ran
        settings = fields.drawn_by(len(drawing.draws))
        latest = None if drawing.changes is None else self._tokens(fields, -1)
        pending = self.device_sampler.draw_at_once(ran.logits, drawing, settings, latest)
        return ran._replace(pending=pending)

    @torch.inference_mode()
    def warm(self) -> None:
        """Launch every kind of kernel that a step may need, before KV memory has contents.

        All rows are padding, so no KV is read or written. With the widest table the attention
        of a chunk is split over the context as far as it ever may be; with a table of one
        block it is not split. A chunk over latents may be expanded, too: at the beginning of a
        sequence, and at the end of the longest.
        """
        most, widest = self.staging.most.tokens, self._most_blocks
        tries = [(tokens, widest, 0) for tokens in row_counts(most)]
        tries += [(tokens, 1, 0) for tokens in row_counts(min(most, MOST_NARROW))]
        if self.memory.shape.parts == 1:
            longest = widest * self.memory.block_size
            sizes = {min(2 * LEAST_EXPANDED, most), most}
            tries += [(tokens, widest, max(0, longest - tokens)) for tokens in sorted(sizes)]
        for tokens, blocks, start in with_progress(tries, "compiling kernels"):
            for adapted in self._with_adapters_or_not:
                self._try(tokens, blocks, start, adapted=adapted)

    def _try(self, tokens: int, blocks: int, start: int, *, adapted: bool) -> None:
        """Run one decode row and a chunk of the other tokens, and sample one token.

        If only one sequence fits in a batch, the chunk is alone. It begins at `start`, as far
        as the host knows.
        """
        sequences = min(tokens, 2, self.limits.max_sequences)
        singles = 0 if sequences < min(tokens, 2) else 1
        size = self._size(tokens, sequences, blocks)
        rows, drawing = min(tokens, MOST_PICKS), warm_up_sampling(self.model.config.vocab_size)
        fields = self.staging.stage(size, Plan((), (), (), range(rows), drawing))
        fields.metadata.tables.zero_()  # an expanded chunk reads them; anything may be there
        self._set_adapters(fields if adapted else None)
        chunk = Span(start, tokens - singles, ())
        fits = start + chunk.length <= blocks * self.memory.block_size
        hidden = self._forward(fields, singles, chunk.length, [chunk] if fits else ())
        logits = self.model.logits(hidden[fields.picks[:rows]])
        ran = self._drawn(ForwardOutput(hidden, logits[:1]), fields, drawing)
        if ran.pending is not None and self.device_sampler is not None:
            self.device_sampler.draw(logits[:1], drawing)
        elif self.device_sampler is not None:
            self.device_sampler.share(1)

    @torch.inference_mode()
    def capture(self, recorder: Recorder) -> None:
        """Capture decode steps by batch size, others by tokens; KV memory is still empty.

        Twice if there are adapters: with and without them.
        """
        rows, config = graph_sizes(self.limits.max_sequences)[-1], self.model.config
        tokens, memory = piece_sizes(self.limits.max_tokens)[-1], self.memory
        new = partial(memory.block_rows.new_empty, dtype=memory.dtype)
        outputs = ForwardOutput(
            new(rows, config.hidden_size),
            new(rows, config.vocab_size, dtype=torch.float32),
        )
        hidden = new(tokens, config.hidden_size)
        self.graphs = self._decode_graphs(recorder, outputs, adapted=False)
        self.pieces = self._piecewise_graphs(recorder, hidden, adapted=False)
        if self._num_adapters and self.accelerator.products is not None:  # torch's wait
            self.adapter_graphs = self._decode_graphs(recorder, outputs, adapted=True)
            self.adapter_pieces = self._piecewise_graphs(recorder, hidden, adapted=True)

    def _decode_graphs(
        self, recorder: Recorder, outputs: ForwardOutput, *, adapted: bool
    ) -> Graphs:
        sizes, graphs = graph_sizes(self.limits.max_sequences), Graphs(outputs)
        graphs.capture(recorder, sizes, partial(self._step_of, adapted=adapted))
        return graphs

    def _step_of(self, sequences: int, *, adapted: bool) -> Step:
        """A decode step over the staged fields of so many sequences, all padding yet."""
        fields = self.staging.clear(self._graph_size(sequences))
        self._set_adapters(fields if adapted else None)

        def step() -> ForwardOutput:
            hidden = self._forward(fields, sequences)
            return ForwardOutput(hidden, self.model.logits(hidden))

        return step

    def _piecewise_graphs(
        self, recorder: Recorder, hidden: Tensor, *, adapted: bool
    ) -> PiecewiseGraphs:
        sizes, pieces = piece_sizes(self.limits.max_tokens), PiecewiseGraphs(hidden)
        pieces.capture(recorder, sizes, partial(self._pieces_of, recorder, adapted=adapted))
        return pieces

    def _pieces_of(self, recorder: Recorder, tokens: int, *, adapted: bool) -> Forward:
        """A forward pass over the staged fields of so many tokens, all padding yet."""
        size = self._size(tokens, 1, self._most_blocks)
        fields = self.staging.clear(size)
        self._set_adapters(fields if adapted else None)
        memory, kernels = self.memory, self.accelerator.kernels

        def forward(cut: Cut) -> tuple[Tensor, Sequence[Call]]:
            batch = CutBatch(
                memory, kernels, fields.metadata, 0, tokens, recorder=recorder, cut=cut
            )
            return self.model.forward(self._tokens(fields, fields.tokens), batch), batch.calls

        return forward

    def _forward(
        self,
        fields: DeviceFields,
        singles: int,
        longest: int = 0,
        chunks: Sequence[Span] = (),
    ) -> Tensor:
        batch = self._batch(fields, singles, longest, chunks)
        return self.model.forward(self._tokens(fields, fields.tokens), batch)

    def _batch(
        self,
        fields: DeviceFields,
        singles: int,
        longest: int,
        chunks: Sequence[Span] = (),
    ) -> DeviceBatch:
        kernels = self.accelerator.kernels
        return DeviceBatch(self.memory, kernels, fields.metadata, singles, longest, chunks)

    def _tokens(self, fields: DeviceFields, others: Tensor | int) -> Tensor:
        """[tokens] the token drawn last at a row's source, or `others` if it has none."""
        latest = self.drawn[fields.sources.clamp(min=0)]
        return torch.where(fields.sources >= 0, latest, others)

    def _size_of(self, plan: Plan) -> BatchSize:
        spans = [*plan.singles, *plan.chunks]
        blocks = table_blocks(max(len(span.blocks) for span in spans))
        blocks = min(blocks, self._most_blocks)
        return self._size(len(plan.tokens), len(spans), blocks)

    def _graph_size(self, sequences: int) -> BatchSize:
        return self._size(sequences, sequences, self._most_blocks)

    def _size(self, tokens: int, sequences: int, blocks: int) -> BatchSize:
        count = self._num_adapters, self.memory.state_blocks
        return BatchSize(tokens, sequences, blocks, *count)

    def _set_adapters(self, fields: DeviceFields | None) -> None:
        """Tell the linear layers which rows have adapters; None: no row has one."""
        if (adapters := adapters_of(self.model)) is not None:
            adapters.rows = None if fields is None else fields.sorted_rows

    @property
    def _num_adapters(self) -> int:
        adapters = adapters_of(self.model)
        return 0 if adapters is None else adapters.count

    @property
    def _with_adapters_or_not(self) -> Sequence[bool]:
        """The kinds of step that there are."""
        return (False, True) if self._num_adapters else (False,)

    @property
    def _most_blocks(self) -> int:
        """Blocks in the table of the longest sequence."""
        return _longest(self.limits, self.memory.block_size, self.memory.num_blocks)


def staged_bytes(limits: Limits, memory: KvMemory, adapters: int) -> int:
    """Bytes of the staging buffer on the device, if KV has room for the longest sequences."""
    longest = _longest(limits, memory.block_size)
    return num_bytes(_largest(limits, longest, adapters, memory.state_blocks))


def _largest(limits: Limits, most_blocks: int, adapters: int, states: int) -> BatchSize:
    """The size of the largest batch."""
    tokens = max(limits.max_tokens, limits.max_sequences)
    return BatchSize(tokens, limits.max_sequences, most_blocks, adapters, states)


def _longest(limits: Limits, block_size: int, num_blocks: int | None = None) -> int:
    """Blocks in the table of the longest sequence that fits in `num_blocks`."""
    lengths = [] if num_blocks is None else [num_blocks]
    if limits.max_model_len is not None:
        lengths.append(-(-limits.max_model_len // block_size))
    return table_blocks(min(lengths, default=0))
