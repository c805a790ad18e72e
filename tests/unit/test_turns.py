"""Engines that start on one device do so one after the other."""

import logging
from pathlib import Path
from threading import Event, Thread

import pytest

from engine.running.device_locks import devices_of, lock_devices
from engine.settings import EngineConfig


def test_who_comes_second_waits_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever order devices are named in: nobody waits for who waits for him."""
    told, order = Event(), list[str]()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    def second() -> None:
        with lock_devices(["b", "a"], tmp_path):
            order.append("second")

    logger, handler = logging.getLogger("engine.running.device_locks"), Told()
    logger.addHandler(handler)
    thread = Thread(target=second)
    try:
        with caplog.at_level(logging.INFO), lock_devices(["a", "b"], tmp_path):
            thread.start()
            assert told.wait(30)
            order.append("first")
        thread.join()
    finally:
        logger.removeHandler(handler)
    assert order == ["first", "second"]
    assert "another engine starts on this device" in caplog.text


def test_other_devices_are_not_waited_for(tmp_path: Path) -> None:
    with lock_devices(["a"], tmp_path), lock_devices(["b"], tmp_path):
        assert len(list(tmp_path.iterdir())) == 2


def test_where_no_file_can_be_made_all_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with lock_devices(["a"], tmp_path / "missing"):
        assert "no turns with engines" in caplog.text


def test_on_a_cpu_nobody_waits() -> None:
    assert devices_of(EngineConfig(model="any", tensor_parallel_size=2)) == []


@pytest.mark.parametrize("device", ["cuda:x", "cudax"])
def test_what_is_no_device_is_left_to_whoever_opens_it(device: str) -> None:
    assert devices_of(EngineConfig(model="any", device=device)) == []
