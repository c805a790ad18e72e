"""The progress bar of loading weights."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from engine.checkpoints.store import TensorStore


@contextmanager
def loading_progress(store: TensorStore) -> Iterator[Progress]:
    """A progress bar with bytes and rate, if standard error is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console, total = Console(stderr=True), store.total_bytes
    with Progress(
        *columns, TransferSpeedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(store.title, total=total)
        yield progress
        progress.update(task, completed=total)
