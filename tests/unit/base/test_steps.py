from tianzhou.base.steps import Steps, finish


def _sum(count: int) -> Steps[int]:
    total = 0
    for number in range(count):
        total += number
        yield
    return total


def test_finish_runs_every_step_and_returns_the_result() -> None:
    assert finish(_sum(5)) == 10


def test_finish_of_work_without_steps_returns_the_result() -> None:
    assert finish(_sum(0)) == 0
