"""Schedules of temperature and constraint as functions of the step."""

import pytest
from tests.errors import raises_usage_error

import contraport
from contraport import Loosen, TemperatureSchedule, Tighten
from contraport.objectives.loss_schedules import parse_constraint_schedule
from contraport.schedules import parse_start_end_shape


def test_temperature_goes_from_start_to_end_and_stays():
    loss = contraport.nt_xent()
    schedule = TemperatureSchedule(1.0, 0.1, steps=100)
    temperatures = []
    for step in (0, 25, 50, 100, 500):
        schedule.apply(loss, step)
        temperatures.append(loss.temperature)
    assert temperatures[0] == 1.0
    assert temperatures[2] == pytest.approx(0.1**0.5)
    assert temperatures[3] == temperatures[4] == pytest.approx(0.1)
    assert temperatures == sorted(temperatures, reverse=True)


def test_levels_have_equal_durations():
    loss = contraport.nt_xent()
    for every in (1, 3, 7, 49, 1_000_003):
        for boundary in range(6):
            for step in (boundary * every, boundary * every + every - 1):
                Tighten(every).apply(loss, step)
                expected = (contraport.Rows(), *map(contraport.Balanced, (1, 2, 4, 8)))[min(boundary, 4)]
                assert loss.constraint == expected


def test_loosen_reverses_tighten():
    loss, constraints = contraport.nt_xent(), {}
    for schedule in (Tighten(3), Loosen(3)):
        constraints[type(schedule)] = []
        for step in range(15):
            schedule.apply(loss, step)
            constraints[type(schedule)].append(loss.constraint)
    assert constraints[Tighten] == constraints[Loosen][::-1]
    assert len(set(constraints[Tighten])) == 5


def test_parsed_schedules_equal_constructed_ones():
    assert TemperatureSchedule.parse("0.5:0.1:linear", 9) == TemperatureSchedule(0.5, 0.1, 9, "linear")
    assert [TemperatureSchedule.parse(0.3, 9).value(step) for step in (0, 5, 99)] == pytest.approx([0.3] * 3)
    assert parse_constraint_schedule("relax:every=3", steps_per_unit=5) == Loosen(15)


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("rows", contraport.Rows()),
        ("balanced:iterations=3", contraport.Balanced(3)),
        ("balanced:iterations=500,tolerance=1e-3", contraport.Balanced(500, 1e-3)),
        ("unbalanced:relaxation=0.2,iterations=10", contraport.Unbalanced(0.2, 10)),
        ("unbalanced:relaxation=inf", contraport.Unbalanced(float("inf"))),
    ],
)
def test_any_constraint_can_be_named(text, constraint):
    loss = contraport.nt_xent()
    parse_constraint_schedule(text, steps_per_unit=7).apply(loss, step=0)
    assert loss.constraint == constraint


def test_rejects_a_constraint_incompatible_with_the_divergence():
    with raises_usage_error("divergence.constraint", "KL"):
        parse_constraint_schedule("tsallis", steps_per_unit=1).apply(contraport.nt_xent(), step=0)


@pytest.mark.parametrize(
    ("create", "code", "value"),
    [
        (lambda: TemperatureSchedule(0, 1, 10), "start.invalid", ""),
        (lambda: TemperatureSchedule(1, 1, 0), "steps.invalid", ""),
        (lambda: TemperatureSchedule(1, 1, 1, "cosin"), "shape.unknown", "'cosine'"),
        (lambda: Tighten(0), "steps_between_changes.invalid", ""),
        (lambda: TemperatureSchedule.parse("0.5:0", 10), "temperature.invalid", ""),
        (lambda: TemperatureSchedule.parse("nan", 10), "temperature.invalid", ""),
        (lambda: parse_start_end_shape("heat", "0.5:"), "heat.format", ""),
        (lambda: parse_start_end_shape("heat", ""), "heat.format", ""),
        (lambda: parse_start_end_shape("heat", "1:2:linear:3"), "heat.format", ""),
        (lambda: parse_start_end_shape("heat", "1:2:liner"), "heat.unknown", "'linear'"),
        (lambda: parse_constraint_schedule("tighten:every=1.5", 1), "constraint.every", ""),
        (lambda: parse_constraint_schedule("relax:each=3", 1), "constraint.unknown", "'each'"),
        (lambda: parse_constraint_schedule("relax:3", 1), "constraint.bad_setting", ""),
        (lambda: parse_constraint_schedule("tighten:every=True", 1), "constraint.every", ""),
        (lambda: parse_constraint_schedule("rows:5", 1), "constraint.bad_setting", "'rows:5'"),
        (
            lambda: parse_constraint_schedule("balanced:iterations=3,iterations=4", 1),
            "constraint.duplicate_setting",
            "",
        ),
        (lambda: parse_constraint_schedule("balanced:iteration=3", 1), "constraint.unknown", "'iteration'"),
        (lambda: parse_constraint_schedule("balanced:3", 1), "constraint.bad_setting", ""),
        (lambda: parse_constraint_schedule("balanced:iterations=0", 1), "constraint.invalid", ""),
        (lambda: parse_constraint_schedule("tight:every=3", 1), "constraint.unknown", "'tighten'"),
        (lambda: Tighten(1).apply(contraport.align_uniform(), 0), "constraint.sum", ""),
    ],
)
def test_rejects_invalid_arguments(create, code, value):
    with raises_usage_error(code, value):
        create()
