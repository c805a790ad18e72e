"""The check at the door: quick, final, and never the end of anybody else."""

import asyncio
import os
import resource
import signal
import threading
from collections.abc import Iterator
from subprocess import Popen
from time import monotonic

import pytest

from engine.errors import GrammarCheckBusy, GrammarRefused
from engine.grammars import checking
from engine.grammars.checking import (
    CROWDED_S,
    DEADLINE_S,
    PATIENCE,
    REMEMBERED,
    START_S,
    GrammarChecker,
)
from engine.request import LONGEST_SOURCE, Grammar
from tests.fakes.hostile_grammars import ENDURED, REFUSED
from tests.fakes.threads import NoThreads
from tests.fakes.waiting import comes_true

LATEST_S = PATIENCE * DEADLINE_S + START_S  # of a check for which a process has to start
PATIENCE_S = 60.0
MOST_OF_SELECT = 1024
FEW_MORE = MOST_OF_SELECT + 256
SLOW = Grammar("json_schema", '{"type": "integer", "multipleOf": 99999989}')
GOOD, OTHER = Grammar("regex", "[a-z]+"), Grammar("regex", "[0-9]+")


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    with GrammarChecker() as one:
        one.check(Grammar("json_object"))
        yield one


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_in_time(checker: GrammarChecker, name: str) -> None:
    began = monotonic()
    with pytest.raises(GrammarRefused) as refusal:
        checker.check(REFUSED[name])
    assert monotonic() - began < LATEST_S
    said = str(refusal.value)
    assert 0 < len(said) < 500
    assert "\n" not in said


@pytest.mark.parametrize("name", ENDURED)
def test_what_looks_bad_takes_no_longer(checker: GrammarChecker, name: str) -> None:
    began = monotonic()
    checker.check(ENDURED[name])
    assert monotonic() - began < LATEST_S


def test_a_busy_machine_is_no_grammars_fault() -> None:
    """A process that had no processor for as long as its deadline has done nothing wrong."""
    with GrammarChecker(deadline_s=0.1) as checker:
        checker.check(GOOD)
        assert checker._examiner is not None
        pid = checker._examiner.pid
        os.kill(pid, signal.SIGSTOP)
        started = threading.Timer(0.2, os.kill, (pid, signal.SIGCONT))
        started.start()
        checker.check(OTHER)
        started.join()


def test_a_check_goes_on_after_one_that_had_to_be_ended() -> None:
    with GrammarChecker(deadline_s=0.2) as checker:
        with pytest.raises(GrammarRefused, match="too long"):
            checker.check(SLOW)
        checker.check(GOOD)


def test_answers_are_remembered() -> None:
    with GrammarChecker(deadline_s=0.2) as checker:
        with pytest.raises(GrammarRefused) as first:
            checker.check(SLOW)
        checker.check(GOOD)
        examiner = checker._examiner
        with pytest.raises(GrammarRefused) as second:
            checker.check(SLOW)
        assert checker._examiner is examiner  # which SLOW would have ended
        assert str(first.value) == str(second.value)


def test_an_end_is_quiet_after_pipes_that_are_closed_or_hold_something() -> None:
    """As the end of an interpreter leaves them, in any order."""
    for data in (b"", b"never read"):
        checker = GrammarChecker()
        checker.check(GOOD)
        examiner = checker._examiner
        assert examiner
        assert examiner.stdin
        examiner.stdin.write(data)
        if not data:
            examiner.stdin.close()
        else:
            examiner.kill()
            examiner.wait()
        checker.close()
        assert examiner.returncode


def test_the_end_of_its_process_is_no_grammars_fault() -> None:
    with GrammarChecker() as checker:
        checker.check(GOOD)
        assert checker._examiner is not None
        checker._examiner.kill()
        checker._examiner.wait()
        checker.check(Grammar("regex", "[a-f]+"))


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """So many files are open that the next one has a number that `select` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FEW_MORE), hard))
    files = [os.open(os.devnull, os.O_RDONLY)]
    while files[-1] < MOST_OF_SELECT:
        files.append(os.dup(files[0]))
    yield
    for one in files:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_door_with_many_connections_checks_grammars_too() -> None:
    with GrammarChecker() as checker:
        checker.check(GOOD)


def test_a_grammar_under_which_the_process_was_killed_may_come_again() -> None:
    with GrammarChecker() as checker:
        checker.check(GOOD)
        assert checker._examiner is not None
        checker._examiner.poll = lambda: None  # type: ignore[method-assign]
        checker._examiner.kill()
        with pytest.raises(GrammarCheckBusy):
            checker.check(OTHER)
        checker.check(OTHER)


def test_what_is_too_long_is_neither_looked_at_nor_kept() -> None:
    with GrammarChecker() as checker:
        with pytest.raises(GrammarRefused, match=str(LONGEST_SOURCE)):
            checker.check(Grammar("regex", "a" * (LONGEST_SOURCE + 1)))
        assert checker._examiner is None
        assert not checker._answers.bad


def test_the_bad_do_not_make_the_good_forgotten() -> None:
    with GrammarChecker() as checker:
        checker.check(GOOD)
        for number in range(REMEMBERED + 1):
            with pytest.raises(GrammarRefused):
                checker.check(Grammar("regex", "(" * (number + 1)))
        assert len(checker._answers.bad) == REMEMBERED
        assert checker._answers.get(GOOD) == ""


@pytest.mark.parametrize("same", [True, False])
async def test_a_batch_that_comes_at_once_is_checked(*, same: bool) -> None:
    """Before the process has started, too, however long that takes beside one's patience."""
    batch = [Grammar("regex", f"[a-z]+{'' if same else number}") for number in range(120)]
    with GrammarChecker() as checker, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "LONGEST_WAIT_S", LATEST_S)
        looked = [checker.checked(one) for one in batch]
        await asyncio.gather(*looked)
        assert set(checker._answers.good) == set(batch)
        assert not checker._turns


async def test_the_start_of_the_process_is_no_sign_of_a_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s, line = 0.0, checking._read_line

    def slowly(process: Popen[bytes], seconds: float) -> bytes | None:
        nonlocal clock_s
        clock_s += START_S - 1 if seconds == START_S else 0.0
        return line(process, PATIENCE_S)

    monkeypatch.setattr(checking, "_read_line", slowly)
    with GrammarChecker() as checker:
        monkeypatch.setattr(checking, "monotonic", lambda: clock_s)
        await asyncio.gather(checker.checked(GOOD), checker.checked(OTHER))
        assert checker._examiner is not None
        checker._examiner.kill()
        checker._examiner.wait()
        late = [checker.checked(Grammar("regex", text)) for text in "ab"]
        said = await asyncio.gather(*late, return_exceptions=True)
        assert [type(one) for one in said] == [type(None), GrammarCheckBusy]


async def test_who_waits_for_the_same_is_no_crowd() -> None:
    """None of them has less time, and all get its answer."""
    with GrammarChecker(deadline_s=2 * CROWDED_S) as checker:
        checker.check(GOOD)
        examiner = checker._examiner
        same = [checker.checked(SLOW) for _ in range(3)]
        said = await asyncio.gather(*same, return_exceptions=True)
        assert {type(one) for one in said} == {GrammarRefused}
        assert checker._examiner is not examiner


async def test_who_leaves_has_no_turn() -> None:
    with GrammarChecker(deadline_s=PATIENCE_S) as checker:
        checker.check(GOOD)
        assert checker._examiner is not None
        os.kill(checker._examiner.pid, signal.SIGSTOP)
        first, left = (
            asyncio.create_task(checker.checked(one)) for one in (Grammar("json_object"), OTHER)
        )
        await comes_true(lambda: len(checker._turns) == 2)
        left.cancel()
        await asyncio.wait([left])
        os.kill(checker._examiner.pid, signal.SIGCONT)
        await first
        await checker.checked(Grammar("regex", "x"))
        assert OTHER not in checker._answers.good


async def test_a_flood_is_told_to_come_again_and_the_known_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "LONGEST_WAIT_S", 0.5)
    with GrammarChecker() as checker:
        checker.check(GOOD)
        slow = [Grammar("json_schema", SLOW.source + " " * n) for n in range(40)]
        flood = [asyncio.create_task(checker.checked(one)) for one in slow]
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(StopIteration):
            checker.checked(GOOD).send(None)  # at its end without a wait
        said = await asyncio.gather(*flood, return_exceptions=True)
        busy = sum(isinstance(one, GrammarCheckBusy) for one in said)
        assert busy >= len(slow) - 2
        assert all(isinstance(one, GrammarCheckBusy | GrammarRefused) for one in said)
        await checker.checked(OTHER)


async def test_for_want_of_threads_it_is_busy_and_no_longer_than_that() -> None:
    threads = NoThreads(1)
    with GrammarChecker(_thread=threads) as checker:
        for _ in range(3):
            with pytest.raises(GrammarCheckBusy, match="thread"):
                await checker.checked(OTHER)
        threads.over = True
        await checker.checked(GOOD)
        assert list(checker._answers.good) == [GOOD], "what was refused is not checked later"


def test_for_want_of_files_it_is_busy_and_no_longer_than_that() -> None:
    """No number is free for a pipe to the process that checks."""
    with GrammarChecker() as checker:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(GrammarCheckBusy, match="Too many open files"):
                checker.check(GOOD)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        checker.check(GOOD)
