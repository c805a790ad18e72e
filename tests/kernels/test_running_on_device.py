"""What a step needs of CUDA: pinned numbers in order, tokens brought by events, graphs."""

import pytest
import torch

from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.running.recorder import CudaRecorder, Cut, Replay
from engine.running.staging import BatchSize, Staging

pytestmark = pytest.mark.gpu
PAUSE_CYCLES = 50_000_000  # some 30 ms, in which a host that does not wait is far ahead


def test_batches_are_sent_from_pinned_memory_one_behind_the_other(
    device: torch.device,
) -> None:
    """The next one's numbers are written once the last ones have left the host."""
    staging, size = Staging(BatchSize(8, 8, 16), 16, device), BatchSize(2, 2, 16)
    assert staging._host.is_pinned()
    seen = list[torch.Tensor]()
    for token in range(4):
        torch.cuda._sleep(PAUSE_CYCLES)
        spans = [Span(token, 1, [token]), Span(2 * token, 1, [token + 1])]
        fields = staging.stage(size, Plan([token, token + 1], spans, (), (0, 1)))
        seen.append(fields.tokens.clone())
    assert [one.tolist() for one in seen] == [[token, token + 1] for token in range(4)]


def test_what_is_brought_are_the_numbers_of_then_and_nobody_waits(device: torch.device) -> None:
    pytest.importorskip("rich")
    from engine.running.accelerator import open_accelerator

    accelerator = open_accelerator(str(device))
    assert accelerator is not None
    numbers = torch.randint(0, 1000, (64,), device=device)
    before = accelerator.copy_to_host(numbers).read()  # pinned memory is there from now on
    assert before == numbers.tolist()
    torch.cuda._sleep(PAUSE_CYCLES)
    brought = accelerator.copy_to_host(numbers)
    assert not torch.cuda.current_stream(device).query(), "the device was waited for"
    numbers.zero_()
    assert brought.read() == before
    accelerator.wait()
    assert torch.cuda.current_stream(device).query()


def test_graphs_are_replayed_over_what_lies_there_by_then(device: torch.device) -> None:
    """Several share a pool; what one works in is of no account to the next."""
    recorder, source = CudaRecorder(device), torch.randn(64, 32, device=device)
    made = torch.zeros(64, 32, device=device)

    def record(rows: int) -> None:
        def work() -> None:
            made[:rows].copy_((source[:rows] * 2).cumsum(1))

        replays[rows] = recorder.record(work)

    replays = dict[int, object]()
    for rows in (64, 8, 1):
        record(rows)
    for rows in (8, 64, 1, 8):
        source.normal_()
        made.fill_(-7)
        replay = replays[rows]
        assert callable(replay)
        replay()
        torch.testing.assert_close(made[:rows], (source[:rows] * 2).cumsum(1))
        assert made[rows:].eq(-7).all()


def test_pieces_share_a_pool_and_lend_what_is_read_between_them(device: torch.device) -> None:
    """What is lent has its numbers until the piece behind it runs, and keeps no memory."""
    recorder = CudaRecorder(device)
    source = torch.randn(64, 256, device=device, dtype=torch.bfloat16)
    made = torch.zeros_like(source)

    def record(rows: int) -> tuple[list[Replay], list[tuple[torch.Tensor, torch.Tensor]]]:
        lent = list[tuple[torch.Tensor, torch.Tensor]]()

        def work(cut: Cut) -> None:
            lent.clear()
            hidden = source[:rows] + 1
            for _ in range(3):
                asked = (hidden * 2)[:, ::2]
                read = torch.empty_like(asked)
                lent.append((recorder.lend(asked), recorder.lend(read)))
                cut(lambda asked=asked, read=read: read.copy_(asked))  # type: ignore[misc]
                hidden = hidden + read.repeat_interleave(2, 1)
            made[:rows].copy_(hidden)

        return list(recorder.record_pieces(work)), lent

    recorded = {rows: record(rows) for rows in (64, 8, 24)}
    for rows in (8, 64, 24, 8):
        source.normal_()
        (first, *others), lent = recorded[rows]
        first()
        expected = source[:rows] + 1
        for replay, (asked, read) in zip(others, lent, strict=True):
            torch.testing.assert_close(asked, (expected * 2)[:, ::2])
            read.copy_(asked * 0.5)
            expected = expected + (asked * 0.5).repeat_interleave(2, 1)
            replay()
        torch.testing.assert_close(made[:rows], expected)
