"""Where the panels stand: inside the terminal, never over each other, and what must survive survives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from console.screens.arrangement import Facts, arrange

facts = st.builds(
    Facts,
    gpus=st.integers(0, 16),
    alert_rows=st.integers(0, 9),
    target_rows=st.integers(3, 4),
    rates=st.integers(0, 8),
    acceptance=st.booleans(),
    speed=st.booleans(),
    roomy_log=st.booleans(),
    alone=st.sampled_from(("", "chart", "events", "log")),
    half_log=st.booleans(),
)


@example(76, 3, Facts(half_log=True))
@example(5, 3, Facts(half_log=True))
@given(st.integers(1, 260), st.integers(1, 90), facts)
def test_panels_lie_inside_and_apart(width: int, height: int, known: Facts) -> None:
    places = arrange(width, height, known)
    for place in places.values():
        assert place.width > 0
        assert place.height > 0
        assert 0 <= place.x <= place.right <= width
        assert 0 <= place.y <= place.bottom <= height
    for one, other in itertools.combinations(places.values(), 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (100, 30), (120, 40), (200, 60)])
@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("alert_rows", [0, 1, 9])
def test_nothing_that_matters_is_left_out(size: tuple[int, int], gpus: int, alert_rows: int) -> None:
    places = arrange(*size, Facts(gpus=gpus, alert_rows=alert_rows, target_rows=4, acceptance=True, rates=3))
    wanted = {"truth", "rail", "chart", "targets", "gpus", "log", "footer"}
    if alert_rows:
        wanted.add("alerts")
    if size[0] >= 80:
        wanted |= {"acceptance"}
    assert wanted <= set(places)
    assert places["chart"].height >= 3
    if size[0] >= 80:
        assert places["gpus"].height == gpus + 1
        assert places["targets"].height == 5


def test_eight_gpus_and_events_fit_at_80x24() -> None:
    places = arrange(80, 24, Facts(gpus=8, target_rows=4, acceptance=True, rates=3))
    assert {name: tuple(place) for name, place in places.items()} == {
        "truth": (0, 0, 80, 1),
        "rail": (0, 1, 80, 2),
        "chart": (1, 3, 49, 10),
        "targets": (1, 13, 49, 5),
        "gpus": (52, 3, 27, 9),
        "acceptance": (52, 12, 27, 2),
        "events": (52, 14, 27, 4),
        "log": (1, 18, 78, 5),
        "footer": (0, 23, 80, 1),
    }


@pytest.mark.parametrize("name", ["chart", "events", "log"])
def test_a_panel_alone_takes_the_body(name: str) -> None:
    places = arrange(80, 24, Facts(alone=name, half_log=True))
    assert set(places) == {"truth", "rail", name, "footer"}
    assert places[name].height == 20


def test_a_half_log_takes_half_of_the_body() -> None:
    assert arrange(80, 24, Facts(half_log=True))["log"].height == 10


def test_a_log_without_a_curve_gets_the_rows() -> None:
    assert arrange(120, 40, Facts(roomy_log=True))["log"].height > arrange(120, 40, Facts())["log"].height


def test_the_truth_is_the_last_to_go() -> None:
    assert set(arrange(10, 1, Facts())) == {"truth"}
