"""Which (row, TTT step) pairs serving would use, and what each reads: the serving-exact mask and its alignment.

Slot t of a drafter holds (h_t, embedding of x_{t+1}) and proposes x_{t+2}; its k-th further draft reads x_{t+1+k} and
proposes x_{t+2+k}, to be judged by the verifier's distribution at t+1+k. Serving uses it only if x_{t+1} and every
token up to the proposed one were generated, so with l_i = "x_i was generated"

    mask(t, k) = l_{t+1} · l_{t+2} · … · l_{t+2+k}

The first such row is the last prompt position; rows never chain across turns, and pairs never leave their sequence. One
exception: where the answer was cut by length, x_{t+2+k} may be the token just past the end, which the verifier's last
distribution still judges. Masks of different steps are nested: mask(t, k+1) implies mask(t, k). Imports numpy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def serving_mask(generated: npt.NDArray[np.bool_], cut: bool, steps: int) -> npt.NDArray[np.bool_]:
    """[n, steps] bool of one sequence: True where pair (t, k) is used while serving.

    generated [n]: l_i; cut: the answer (or the sequence) was cut by length. Pairs whose teacher or input would lie
    past the end are False.
    """
    count = len(generated)
    padded = np.zeros(count + steps + 2, dtype=bool)
    padded[:count] = generated
    if cut and count and generated[-1]:
        padded[count] = True  # the next token was generated too, it is only not in the data
    mask = np.zeros((count, steps), dtype=bool)
    alive = padded[1 : count + 1].copy()
    for step in range(steps):
        alive &= padded[2 + step : count + 2 + step]
        mask[:, step] = alive
    return mask


def turns_of(generated: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Turns of a sequence as (last prompt position, position of the turn's last generated token).

    A turn that opens the sequence without a prompt starts at its own first token: there is no slot before it.
    """
    turns = []
    position = 0
    while position < len(generated):
        if not generated[position]:
            position += 1
            continue
        end = position
        while end + 1 < len(generated) and generated[end + 1]:
            end += 1
        turns.append((max(position - 1, 0), end))
        position = end + 1
    return turns


def serving_walk(
    hits: npt.NDArray[np.bool_], generated: npt.NDArray[np.bool_], cut: bool
) -> tuple[int, npt.NDArray[np.int64]]:
    """Simulated speculative decoding of one sequence: (verifications, accepted drafts by position [steps]).

    hits [n, steps]: draft k of slot t equals x_{t+2+k}; False where that token is unknown. As an engine does: start
    at the last prompt position (the verifier has given x_{t+1}), accept the leading j hits, jump to slot t+j+1. A
    verification whose outcome lies past the end of a cut answer is not counted; past an end-of-turn token nothing is
    accepted.
    """
    steps = hits.shape[1]
    accepted = np.zeros(steps, dtype=np.int64)
    rounds = 0
    turns = turns_of(generated)
    for number, (start, end) in enumerate(turns):
        open_end = cut and number == len(turns) - 1 and end == len(generated) - 1
        slot = start
        while slot + 1 < end:
            known = end - slot - 1  # drafts whose true token is in the data
            if open_end and known < steps:
                break
            run = 0
            while run < min(steps, known) and hits[slot, run]:
                run += 1
            rounds += 1
            accepted[:run] += 1
            slot += run + 1
    return rounds, accepted
