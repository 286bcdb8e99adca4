"""The writing thread of extract: order, bounds, and where its errors and results come out."""

from __future__ import annotations

import threading
import time

import pytest

from pipeline.extract.disk import DEPTH, Disk


def test_jobs_run_in_order_and_results_come_in_the_callers_thread() -> None:
    disk, ran, got = Disk(), [], []
    for number in range(20):

        def work(number: int = number) -> int:
            time.sleep(0.001)
            ran.append((number, threading.current_thread().name))
            return number

        disk.submit(work, lambda result: got.append((result, threading.current_thread().name)))
    disk.drain()
    disk.close()
    assert [number for number, _ in ran] == [number for number, _ in got] == list(range(20))
    assert {name for _, name in got} == {threading.current_thread().name}
    assert all(name.startswith("disk") for _, name in ran)


def test_no_more_than_the_depth_waits() -> None:
    disk, gate = Disk(), threading.Event()
    for _ in range(DEPTH):
        disk.submit(gate.wait, lambda _: None, 100)
    assert disk.waiting_bytes == 100 * DEPTH
    threading.Timer(0.05, gate.set).start()
    disk.submit(lambda: None, lambda _: None, 1)  # waits for one of the others
    assert gate.is_set()
    disk.drain()
    assert disk.waiting_bytes == 0
    disk.close()


def test_error_of_a_job_comes_out_first_and_nothing_behind_it_runs() -> None:
    disk, ran, gate = Disk(), [], threading.Event()

    def fail() -> None:
        gate.wait()
        raise OSError(28, "No space left on device")

    disk.submit(fail, lambda _: None)
    disk.submit(lambda: ran.append(1), lambda _: None)
    disk.submit(lambda: ran.append(2), lambda _: None)
    gate.set()
    with pytest.raises(OSError, match="No space"):
        disk.drain()
    disk.close()
    assert ran == []
