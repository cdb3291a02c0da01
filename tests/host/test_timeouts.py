"""A limited wait whose task is cancelled at any moment."""

import asyncio
import contextlib
import gc

import pytest

from headwater_host.timeouts import within


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_is_not_lost_when_the_work_has_just_finished(turns: int) -> None:
    event = asyncio.Event()
    rounds = 0

    async def again_and_again() -> None:
        nonlocal rounds
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(60, event.wait())
            event.clear()
            rounds += 1

    task = asyncio.ensure_future(again_and_again())
    for _ in range(5):
        await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done, f"it goes on after {rounds} rounds"
    assert task.cancelled()


async def test_the_time_and_the_result() -> None:
    assert await within(60, asyncio.sleep(0, "x")) == "x"
    endless = asyncio.ensure_future(asyncio.sleep(60))
    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, endless)
    assert endless.cancelled()
    with pytest.raises(ZeroDivisionError):
        await within(60, _fails())


async def test_an_error_of_the_work_while_its_caller_is_cancelled_is_retrieved() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    failing = asyncio.Event()

    async def fails() -> None:
        await failing.wait()
        raise ZeroDivisionError

    task = asyncio.ensure_future(within(60, fails()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    failing.set()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()
    del task
    gc.collect()
    assert not reported


async def _fails() -> None:
    raise ZeroDivisionError
