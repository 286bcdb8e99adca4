"""The stop ladder and the verdict: pure, so with made-up clocks."""

from __future__ import annotations

import signal

import pytest

from remote.agent.ladder import Ladder, StopPolicy, saving_grace
from remote.agent.supervisor import stop_policy
from remote.agent.verdict import Ending, verdict

MAIN, ONE, TWO = (10, 1), (11, 1), (12, 1)
POLICY = StopPolicy(grace_s=60, interrupt=True, interrupt_after_s=3, term_s=10, leftover_s=5)


def climb(ladder, main=MAIN, members=(MAIN, ONE, TWO), until=100, step=0.5):
    """(time, signal, pids) of every order over ``until`` seconds."""
    found, now = [], 0.0
    while now <= until:
        by: dict[int, list[int]] = {}
        for (pid, _), number in ladder.orders(now, main, members):
            by.setdefault(number, []).append(pid)
        found += [(now, number, pids) for number, pids in by.items()]
        now += step
    return found


def first(orders, number):
    return next((now, pids) for now, found, pids in orders if found == number)


def test_nothing_is_sent_unasked():
    assert climb(Ladder(POLICY)) == []


def test_stop_climbs_rung_by_rung():
    ladder = Ladder(POLICY)
    ladder.ask(0.0)
    orders = climb(ladder)
    assert first(orders, signal.SIGINT) == (3.0, [10])
    assert first(orders, signal.SIGTERM) == (60.0, [10, 11, 12])
    assert first(orders, signal.SIGKILL) == (70.0, [10, 11, 12])
    assert len([order for order in orders if order[1] == signal.SIGINT]) == 1
    assert len([order for order in orders if order[1] == signal.SIGTERM]) == 1
    assert len([order for order in orders if order[1] == signal.SIGKILL]) > 50  # until nobody is left


@pytest.mark.parametrize(
    ("progress", "want"),
    [
        ({}, 0),
        ({"save_s": 90.0}, 180),
        ({"save_s": 2.0}, 30),
        ({"save_s": 1e6}, 1800),
        ({"save_s": None, "saving_mono": 1000.0}, 100 + 30),
        ({"save_s": None, "saving_mono": 1100.0 - 1801}, 0),
        ({"save_s": 90.0, "saving_mono": 1000.0}, 180),
        ({"save_s": "x", "saving_mono": "y"}, 0),
    ],
)
def test_the_grace_that_a_checkpoint_asks_for(progress, want):
    assert saving_grace(progress, 1000.0, 1100.0) == want


def test_a_stop_is_given_more_time_but_not_once_it_was_terminated():
    ladder = Ladder(POLICY)
    assert not ladder.allow(30)
    ladder.ask(0.0)
    assert ladder.allow(180)
    orders = climb(ladder, until=200)
    assert first(orders, signal.SIGTERM)[0] == 180.0
    assert not ladder.allow(400)
    assert ladder.grace_s == 180


def test_the_main_process_goes_first():
    ladder = Ladder(POLICY)
    ladder.kill(0.0)
    assert next(member for member, _ in ladder.orders(0.0, MAIN, [TWO, MAIN, ONE])) == MAIN


def test_elastic_launchers_get_no_interrupt():
    policy = stop_policy({"argv": ["/env/bin/torchrun", "--nproc-per-node=8", "-m", "pipeline.train"], "grace_s": 60})
    assert not policy.interrupt
    assert not stop_policy({"argv": ["python", "-m", "torch.distributed.run", "x"]}).interrupt
    assert stop_policy({"argv": ["python", "-m", "pipeline.train"]}).interrupt
    ladder = Ladder(policy)
    ladder.ask(0.0)
    assert signal.SIGINT not in [number for _, number, _ in climb(ladder)]


def test_kill_needs_no_asking_and_shortens_a_stop():
    ladder = Ladder(POLICY)
    ladder.ask(0.0)
    ladder.kill(1.0)
    orders = climb(ladder)
    assert {number for _, number, _ in orders} == {signal.SIGKILL}
    assert orders[0][0] == 1.0


def test_leftovers_of_an_ended_main():
    ladder = Ladder(POLICY)
    ladder.main_ended(0.0)
    orders = climb(ladder, main=None, members=[ONE])
    assert first(orders, signal.SIGTERM) == (5.0, [11])
    assert first(orders, signal.SIGKILL) == (15.0, [11])
    assert ladder.rung == ""


def test_a_newcomer_is_told_to_end_too():
    ladder = Ladder(POLICY)
    ladder.ask(0.0)
    ladder.orders(60.0, MAIN, [MAIN])
    assert (ONE, signal.SIGTERM) in ladder.orders(61.0, MAIN, [MAIN, ONE])


def test_the_supervisor_sleeps_while_nothing_is_due():
    ladder = Ladder(POLICY)
    assert ladder.wait_s(5.0, 1.0) == 1.0
    ladder.ask(5.0)
    assert ladder.wait_s(7.5, 1.0) == 0.5
    assert ladder.wait_s(64.8, 1.0) <= 0.2 + 1e-9


DONE = {"result": "done", "resumable": False}
STOPPED = {"result": "stopped", "message": "saved at step 7", "resumable": True}
FAILED = {"result": "failed", "message": "endpoint down", "remedy": "start it", "resumable": True}


@pytest.mark.parametrize(
    ("ending", "reason", "resumable", "says"),
    [
        (Ending(DONE, code=0), "done", False, ""),
        (Ending(DONE, code=None, signal=9, asked="kill"), "done", False, ""),
        (Ending(None, code=0, complete=True), "done", False, ""),
        (Ending(None, signal=9, asked="kill", rung="killed", complete=True), "done", False, ""),
        (Ending(None, signal=2, asked="stop", rung="interrupted", complete=True), "done", False, ""),
        (Ending(STOPPED, code=0, asked="stop"), "stopped", True, "saved at step 7"),
        (Ending(STOPPED, code=0), "stopped", True, "saved at step 7"),
        (Ending(FAILED, code=1), "failed", True, "endpoint down"),
        (Ending(FAILED, code=1, asked="kill"), "killed", True, "endpoint down"),
        (Ending(None, signal=9, asked="kill", rung="killed"), "killed", True, "killed on request"),
        (Ending(None, signal=2, asked="stop", rung="interrupted"), "stopped", True, "on request"),
        (Ending(None, signal=15, asked="stop", rung="terminated"), "stopped", True, "on request"),
        (Ending(None, signal=9, asked="stop", rung="killed", grace_s=60), "killed", True, "within 60 s"),
        (Ending(None, signal=9), "failed", True, "SIGKILL"),
        (Ending(None, signal=9, memory_kills=1), "failed", True, "memory limit"),
        (Ending(None, signal=11, last_line="boom"), "failed", True, "SIGSEGV: boom"),
        (Ending(None, code=3, last_line="KeyError: 'x'"), "failed", True, "status 3: KeyError: 'x'"),
        (Ending(None, code=0), "failed", True, "without saying how"),
        (Ending(None, adopted=True), "lost", True, "nothing watched"),
        (Ending(DONE, adopted=True), "done", False, ""),
    ],
)
def test_verdict(ending, reason, resumable, says):
    found = verdict(ending)
    assert (found["reason"], found["resumable"]) == (reason, resumable)
    assert says in found["message"]
