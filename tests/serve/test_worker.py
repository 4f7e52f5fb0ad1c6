"""The worker: a full queue is refused, who has left is not computed for, a long job does not hold up a short one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from formers.core import FormersError
from formers.serve.errors import ApiError
from formers.serve.limits import LIMITS
from formers.serve.worker import Job, Worker
from serving import wait_until


async def never() -> bool:
    return False


def counting(count: int, made: list[int], pause: float = 0.001) -> Iterator[int]:
    for i in range(count):
        time.sleep(pause)
        made.append(i)
        yield i


def test_what_does_not_fit_into_the_queue_is_refused_with_a_time_to_come_again() -> None:
    async def scene() -> None:
        worker = Worker(replace(LIMITS, queue=2, active=1))
        hold = threading.Event()

        def held() -> Iterator[int]:
            hold.wait(10)
            yield 1

        first = worker.submit(held())
        await asyncio.sleep(0.1)
        waiting = [worker.submit(iter_of(i)) for i in range(2)]
        with pytest.raises(ApiError) as refused:
            worker.submit(iter_of(9))
        assert refused.value.status == 429
        assert int(refused.value.headers["retry-after"]) >= 1
        hold.set()
        assert [await job.all(never) for job in (first, *waiting)] == [[1], [0], [1]]
        wait_until(lambda: worker.busy == {"active": 0, "waiting": 0})  # the last answer comes before the job is removed
        worker.close()
        worker.join(5)
        with pytest.raises(ApiError, match="closing"):
            worker.submit(iter_of(1))

    asyncio.run(scene())


def iter_of(value: int) -> Iterator[int]:
    yield value


def test_jobs_take_turns() -> None:
    async def scene() -> None:
        worker = Worker(LIMITS)
        long: list[int] = []
        job = worker.submit(counting(1000, long))
        await asyncio.sleep(0.05)
        short = worker.submit(counting(3, []))
        assert await short.all(never) == [0, 1, 2]
        assert len(long) < 500
        job.cancel()
        worker.close()

    asyncio.run(scene())


def test_nobody_computes_for_a_client_that_left() -> None:
    async def scene() -> None:
        worker = Worker(LIMITS)
        made: list[int] = []
        job: Job = worker.submit(counting(100_000, made))
        async for item in job.items():
            if item == 3:
                break
        await asyncio.sleep(0)
        job.cancel()
        wait_until(job.ended.is_set)
        assert len(made) < 1000
        left = worker.submit(slow(made))

        async def gone() -> bool:
            return True

        with pytest.raises(ApiError):
            await left.all(gone)
        wait_until(left.ended.is_set)
        worker.close()

    asyncio.run(scene())


def slow(made: list[int]) -> Iterator[Any]:
    while True:
        time.sleep(0.4)
        made.append(0)
        yield None


def test_a_job_has_so_many_seconds() -> None:
    async def scene() -> None:
        worker = Worker(replace(LIMITS, seconds=0.2))
        with pytest.raises(ApiError) as late:
            await worker.submit(counting(100_000, [])).all(never)
        assert late.value.status == 503
        assert late.value.code == "timeout"
        worker.close()

    asyncio.run(scene())


def test_a_job_that_fails_tells_its_request_and_no_other() -> None:
    async def scene() -> None:
        worker = Worker(LIMITS)

        def failing() -> Iterator[int]:
            yield 1
            raise FormersError("this does not work: do something else.")

        with pytest.raises(FormersError, match="do something else"):
            await worker.submit(failing()).all(never)
        assert await worker.submit(iter_of(5)).all(never) == [5]
        worker.close()

    asyncio.run(scene())
