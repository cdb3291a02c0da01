"""The capture log from asyncio: the loop never waits for the disk, and who asks learns when a record is on it."""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from headwater_host.capture import CaptureLockedError, CaptureWriteError, list_blocks, verify
from headwater_host.capture.asyncio_writer import AsyncCapture, CaptureFullError
from headwater_host.capture.block_log import BlockLog
from tests.host.capture_logs import read_log, record, records, segments
from tests.host.clocks import loop_clock_stands
from tests.host.test_capture_failures import file_size_limit
from tests.rows import each_row
from tools.capture_log import LogWriter

DEADLINE = 20.0


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end within a time that only a hang takes; what is left running or unretrieved is an error."""
    problems: list[dict[str, Any]] = []

    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        await asyncio.wait_for(main, DEADLINE)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())
    assert problems == []
    for thread in threading.enumerate():
        if thread.name.startswith("capture"):
            thread.join(DEADLINE)
            assert not thread.is_alive()


def checked(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test whose coroutine function ``run`` runs."""

    @wraps(test)
    def whole(**fixtures: Any) -> None:
        run(test(**fixtures))

    return whole


class SlowDisk:
    """A real fdatasync that a test holds up or lets fail, in the writer's thread."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()
        self.count = 0
        self.fails = False

    def __call__(self, fd: int) -> None:
        self.count += 1
        self.entered.set()
        assert self.go.wait(DEADLINE)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)

    async def reached(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.entered.wait, DEADLINE)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@checked
async def test_a_record_is_durable_without_anybody_asking(tmp_path: Path) -> None:
    async with AsyncCapture(tmp_path) as capture:
        assert capture.append(*record(0)) == 1
        assert capture.append(*record(1)) == 2
        assert capture.durable_number == 0
        assert read_log(tmp_path) == []
        await capture.durable(2)
        assert capture.durable_number == 2
        assert read_log(tmp_path) == records(2)
        await capture.durable(1)
        await capture.durable(0)
        assert capture.append(*record(2)) == 3
    assert read_log(tmp_path) == records(3)
    assert [info.header.records for info in list_blocks(tmp_path)] == [2, 1]
    assert verify(tmp_path).problems == []


@checked
async def test_a_block_is_not_longer_than_it_may_be(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with AsyncCapture(tmp_path, block_bytes=1000, datasync=disk) as capture:
        for number in range(100):
            capture.append(*record(number))
        await capture.flush()
        assert capture.durable_number == 100
        await capture.flush()
    blocks = list_blocks(tmp_path)
    assert disk.count == len(blocks) > 1
    assert all(block.header.body_length <= 1000 for block in blocks)
    assert read_log(tmp_path) == records(100)


@checked
async def test_the_loop_runs_and_records_are_taken_while_the_disk_is_busy(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go.clear()
    async with AsyncCapture(tmp_path, datasync=disk) as capture:
        capture.append(*record(0))
        await disk.reached()
        waiting = asyncio.create_task(capture.durable(1))
        for number in range(1, 50):
            capture.append(*record(number))
            await asyncio.sleep(0)
        assert not waiting.done()
        assert capture.durable_number == 0
        disk.go.set()
        await waiting
        await capture.durable(50)
        assert disk.count <= 3  # what came meanwhile went together
    assert read_log(tmp_path) == records(50)


@checked
async def test_no_timer_stands_between_a_record_and_the_disk(tmp_path: Path) -> None:
    async with AsyncCapture(tmp_path) as capture:
        with loop_clock_stands():
            for number in range(3):
                capture.append(*record(2 * number))
                capture.append(*record(2 * number + 1))
                await capture.durable(2 * number + 2)
    assert read_log(tmp_path) == records(6)
    assert [info.header.records for info in list_blocks(tmp_path)] == [2, 2, 2]


@checked
async def test_what_arrives_during_one_sync_is_the_next_block(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go.clear()
    async with AsyncCapture(tmp_path, datasync=disk) as capture:
        capture.append(*record(0))
        await disk.reached()
        for number in range(1, 500):
            capture.append(*record(number))
            await asyncio.sleep(0)
        assert disk.count == 1
        disk.go.set()
        await capture.durable(500)
        assert disk.count == 2
    assert [info.header.records for info in list_blocks(tmp_path)] == [1, 499]
    assert read_log(tmp_path) == records(500)


@checked
async def test_a_call_that_raises_or_calls_again_disturbs_nobody(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    seen: list[str] = []
    async with AsyncCapture(tmp_path) as capture:

        def again() -> None:
            seen.append("again")
            capture.when_durable(capture.append(*record(1)), lambda: seen.append("next"))

        handler = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        number = capture.append(*record(0))
        capture.when_durable(number, lambda: 1 // 0)
        capture.when_durable(number, again)
        capture.when_durable(number, lambda: seen.append("last"))
        await until(lambda: "next" in seen)
        loop.set_exception_handler(handler)
    assert seen == ["again", "last", "next"]
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]
    assert read_log(tmp_path) == records(2)


@checked
async def test_calls_come_in_order_and_only_when_it_is_true(tmp_path: Path) -> None:
    seen: list[int] = []
    async with AsyncCapture(tmp_path, block_bytes=300) as capture:

        def note(number: int) -> None:
            assert capture.durable_number >= number
            seen.append(number)

        for number in range(1, 61):
            assert capture.append(*record(number)) == number
            capture.when_durable(number, lambda number=number: note(number))  # type: ignore[misc]
            if number % 7 == 0:
                await asyncio.sleep(0.002)
        await capture.flush()
        capture.when_durable(3, lambda: seen.append(-3))
        assert seen[-1] != -3
        await asyncio.sleep(0)
    assert seen == [*range(1, 61), -3]


@checked
async def test_a_number_that_no_record_has_is_an_error(tmp_path: Path) -> None:
    async with AsyncCapture(tmp_path) as capture:
        capture.append(*record(0))
        for number in (2, -1):
            with pytest.raises(ValueError, match=f"record {number}: 1 were appended"):
                await capture.durable(number)
            with pytest.raises(ValueError, match=f"record {number}"):
                capture.when_durable(number, print)


@checked
async def test_a_waiter_that_is_cancelled_disturbs_nobody(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go.clear()
    async with AsyncCapture(tmp_path, datasync=disk) as capture:
        capture.append(*record(0))
        first = asyncio.create_task(capture.durable(1))
        second = asyncio.create_task(capture.durable(1))
        await disk.reached()
        first.cancel()
        await asyncio.wait([first])
        disk.go.set()
        await second


@checked
async def test_back_pressure(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go.clear()
    sizes = {"block_bytes": 1000, "limit_bytes": 3000}
    async with AsyncCapture(tmp_path, datasync=disk, **sizes) as capture:  # type: ignore[arg-type]
        await capture.room()
        taken = 0
        while not capture.full:
            capture.append(*record(taken, 100))
            taken += 1
        assert 3000 <= capture.pending_bytes < 3300
        with pytest.raises(CaptureFullError, match=r"\d+ bytes wait for the disk"):
            capture.append(*record(taken, 100))

        async def produce(start: int, count: int) -> None:
            for number in range(start, start + count):
                await capture.room()
                capture.append(*record(number, 100))
                assert capture.pending_bytes < 3300

        # Several producers at once never meet CaptureFullError when each asks for room first.
        producers = [asyncio.create_task(produce(start, 50)) for start in (1000, 2000, 3000)]
        await asyncio.sleep(0.01)
        assert not any(producer.done() for producer in producers)
        disk.go.set()
        await asyncio.gather(*producers)
        await capture.flush()
        assert capture.pending_bytes == 0
    numbers = [int.from_bytes(one.frame[:8], "big") for one in read_log(tmp_path)]
    assert sorted(numbers) == sorted([*range(taken), *(n + i for n in (1000, 2000, 3000) for i in range(50))])
    assert [number for number in numbers if 1000 <= number < 2000] == list(range(1000, 1050))


@checked
async def test_a_record_that_cannot_be_stored_is_the_caller_s_error(tmp_path: Path) -> None:
    async with AsyncCapture(tmp_path) as capture:
        capture.append(*record(0))
        with pytest.raises(ValueError, match="direction 256"):
            capture.append(*record(1)._replace(direction=256))
        assert capture.append(*record(1)) == 2
    assert read_log(tmp_path) == records(2)


@pytest.mark.parametrize("tell", [True, False])
def test_a_disk_that_refuses_for_a_while_delays_and_loses_nothing(
    tmp_path: Path, tell: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        errors: list[CaptureWriteError] = []
        on_error = errors.append if tell else None
        clock = partial(int, record(0).time_ns)  # the segment stays young
        async with AsyncCapture(tmp_path, on_error=on_error, clock=clock) as capture:
            capture.append(*record(0))
            await capture.durable(1)
            assert capture.error is None
            with file_size_limit(0):
                capture.append(*record(1))
                waiting = asyncio.create_task(capture.durable(2))
                await until(lambda: capture.error is not None)
                await asyncio.sleep(0)
                capture.append(*record(2))
                assert not waiting.done()
                assert capture.durable_number == 1
            await waiting
            assert capture.error is None
            await capture.durable(3)
        if tell:
            assert {error.errno for error in errors} == {errno.EFBIG}
        else:
            assert "records are not written, but kept" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(main())
    assert (caplog.text == "") == tell
    assert read_log(tmp_path) == records(3)
    assert verify(tmp_path).problems == []


def test_closing_with_a_disk_that_refuses_is_an_error_for_all_who_wait(tmp_path: Path) -> None:
    async def main() -> None:
        disk = SlowDisk()
        capture = AsyncCapture(
            tmp_path, datasync=disk, on_error=lambda error: None, block_bytes=100, limit_bytes=100
        )
        async with capture:
            capture.append(*record(0))
            await capture.durable(1)
            disk.fails = True
            capture.append(*record(1))
            capture.append(*record(2))
            waiting = asyncio.create_task(capture.durable(3))
            room = asyncio.create_task(capture.room())
            await until(lambda: capture.error is not None)
            with pytest.raises(CaptureWriteError, match="Input/output error"):
                await capture.aclose()
            for task in (waiting, room):
                with pytest.raises(CaptureWriteError):
                    await task
            with pytest.raises(CaptureWriteError):
                await capture.durable(3)
            with pytest.raises(CaptureWriteError):
                await capture.room()
            with pytest.raises((ValueError, CaptureFullError)):
                capture.append(*record(3))
            assert capture.durable_number == 1

    run(main())
    assert read_log(tmp_path) == records(1)
    with LogWriter(tmp_path) as writer:  # the lock is free
        assert str(writer.recovery) == ""


def test_an_exception_in_the_body_does_not_lose_records(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCapture(tmp_path) as capture:
            capture.append(*record(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main())
    assert read_log(tmp_path) == records(1)


@checked
async def test_cancelling_the_body_writes_what_there_is(tmp_path: Path) -> None:
    async def body(appended: asyncio.Event) -> None:
        async with AsyncCapture(tmp_path) as capture:
            capture.append(*record(0))
            appended.set()
            await asyncio.Event().wait()

    appended = asyncio.Event()
    task = asyncio.create_task(body(appended))
    await appended.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert read_log(tmp_path) == records(1)


def test_cancelling_everything_while_the_disk_is_busy_ends_and_lets_go(tmp_path: Path) -> None:
    async def main() -> None:
        disk = SlowDisk()
        disk.go.clear()
        capture = AsyncCapture(tmp_path, datasync=disk)
        await capture.__aenter__()
        capture.append(*record(0))
        await disk.reached()
        capture.append(*record(1))
        waiting = asyncio.create_task(capture.durable(2))
        await asyncio.sleep(0)
        capture._task.cancel()
        await asyncio.sleep(0)
        disk.go.set()
        with pytest.raises(CaptureWriteError, match="cancelled"):
            await waiting
        with pytest.raises(asyncio.CancelledError):
            await capture.aclose()
        with pytest.raises(ValueError, match="closed"):
            capture.append(*record(2))

    run(main())
    with LogWriter(tmp_path):  # the lock is free
        assert read_log(tmp_path) == records(1)


@checked
async def test_closing_twice_and_appending_after(tmp_path: Path) -> None:
    capture = AsyncCapture(tmp_path)
    with pytest.raises(ValueError, match="not open yet"):
        capture.append(*record(0))
    async with capture:
        capture.append(*record(0))
        await asyncio.gather(capture.aclose(), capture.aclose())
        assert capture.durable_number == 1
    await capture.aclose()
    with pytest.raises(ValueError, match="closed"):
        capture.append(*record(1))
    assert read_log(tmp_path) == records(1)
    assert [segment.sealed for segment in verify(tmp_path).segments] == [True]


@checked
async def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    async with AsyncCapture(tmp_path):
        with pytest.raises(CaptureLockedError, match="another writer"):
            async with AsyncCapture(tmp_path):
                pass


@checked
async def test_cancelling_while_the_log_is_opened_lets_go_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go = threading.Event(), threading.Event()

    def open_slowly(*arguments: Any, **sizes: Any) -> BlockLog:
        log = BlockLog(*arguments, **sizes)
        opened.set()
        assert go.wait(DEADLINE)
        return log

    monkeypatch.setattr("headwater_host.capture.asyncio_writer.BlockLog", open_slowly)
    opening = asyncio.create_task(AsyncCapture(tmp_path).__aenter__())
    await asyncio.get_running_loop().run_in_executor(None, opened.wait, DEADLINE)
    with pytest.raises(CaptureLockedError):
        LogWriter(tmp_path)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    go.set()

    def is_released() -> bool:
        try:
            LogWriter(tmp_path).close()
        except CaptureLockedError:
            return False
        return True

    # The thread that opens it closes it.
    await until(is_released)


@checked
async def test_what_opening_found_is_told(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        writer.append(*record(0))
    (path,) = segments(tmp_path)
    (tmp_path / "manifest.jsonl").unlink()
    path.write_bytes(path.read_bytes() + b"HWB1")
    async with AsyncCapture(tmp_path) as capture:
        assert [problem.length for problem in capture.recovery.cut] == [4]


@checked
async def test_calls_come_in_the_order_of_the_numbers_though_a_sync_ends_in_between(tmp_path: Path) -> None:
    """A call for what is on disk already, while the loop is about to learn of the next sync."""
    begun, go, told = threading.Event(), threading.Event(), threading.Event()

    def sync(fd: int) -> None:
        os.fdatasync(fd)
        begun.set()
        assert go.wait(DEADLINE)

    loop = asyncio.get_running_loop()
    threadsafe = loop.call_soon_threadsafe

    def telling(call: Callable[..., object], *args: Any, **more: Any) -> Any:
        handle = threadsafe(call, *args, **more)
        if getattr(call, "__name__", "") == "_done":
            told.set()
        return handle

    async with AsyncCapture(tmp_path, datasync=sync) as capture:
        go.set()
        capture.append(*record(0))
        await capture.durable(1)
        loop.call_soon_threadsafe = telling  # type: ignore[method-assign, assignment]
        go.clear()
        begun.clear()
        called: list[int] = []
        capture.append(*record(1))
        capture.when_durable(2, partial(called.append, 2))
        await until(begun.is_set)
        # The loop stands still until the thread has told it.
        go.set()
        assert told.wait(DEADLINE)
        capture.when_durable(1, partial(called.append, 1))
        await until(lambda: len(called) == 2)
        assert called == [1, 2]


@checked
async def test_a_segment_is_sealed_by_age_also_when_nothing_more_comes(tmp_path: Path) -> None:
    now = record(0).time_ns
    async with AsyncCapture(tmp_path, segment_age=10, clock=lambda: now) as capture:
        capture.append(*record(0))
        await capture.durable(1)
        assert [segment.sealed for segment in verify(tmp_path).segments] == [False]
        now += 11 * 10**9
        await until(lambda: verify(tmp_path).segments[0].sealed)
        capture.append(*record(1))
        await capture.durable(2)
        assert [segment.sealed for segment in verify(tmp_path).segments] == [True, False]


@each_row("sizes", [{"block_bytes": 0}, {"limit_bytes": 10}])
def test_sizes_that_are_not_possible_are_refused(tmp_path: Path, sizes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the limit is|at least block_bytes"):
        AsyncCapture(tmp_path, **sizes)
