import pytest

from autokernel.errors import NoCompiler
from autokernel.execute import Comparison, Job, Side
from autokernel.execute.local import LocalExecutor
from autokernel.records import Timing

JOB = Job(folder="tasks/01-norm", source="text", opponent=Side(kind="eager"))
PAIR = Comparison(folder="tasks/02-gelu", first=Side(kind="eager"), second=Side(kind="kernel", source="text"))
TIMING = Timing(incumbent_us=2.0, candidate_us=1.0, speedup=2.0, ci_low=1.9, ci_high=2.1, pairs=8)


class Bench:
    def __init__(self, path, events, failure=None):
        self.path, self.events, self.failure = path, events, failure
        events.append(f"open {path}")

    def judge(self, job):
        raise self.failure

    def compare(self, comparison):
        return TIMING

    def prefetch(self, sources):
        self.events.append(f"prefetch {len(sources)} {self.path}")

    def rest(self):
        self.events.append(f"rest {self.path}")

    def close(self):
        self.events.append(f"close {self.path}")


def test_a_task_rests_when_another_is_judged_and_not_when_something_is_compiled_ahead():
    events = []
    executor = LocalExecutor(lambda path: Bench(path, events))
    executor.compare(PAIR)
    executor.prefetch("tasks/01-norm", ["a", "b"])
    executor.compare(PAIR)
    executor.compare(PAIR.model_copy(update={"folder": "tasks/01-norm"}))
    assert events == [
        "open tasks/02-gelu", "open tasks/01-norm", "prefetch 2 tasks/01-norm", "rest tasks/02-gelu",
    ]  # fmt: skip


def test_a_bench_is_opened_once_for_each_task_and_closed_at_the_end():
    events = []
    executor = LocalExecutor(lambda path: Bench(path, events), on_close=lambda: events.append("sandbox"))
    assert executor.compare(PAIR).result() == TIMING
    executor.compare(PAIR)
    executor.close()
    assert events == ["open tasks/02-gelu", "close tasks/02-gelu", "sandbox"]


def test_what_the_bench_raises_comes_out_of_the_future():
    executor = LocalExecutor(lambda path: Bench(path, [], NoCompiler(looked_for="g++")))
    future = executor.submit(JOB)
    with pytest.raises(NoCompiler):
        future.result()


def test_an_interrupt_is_not_kept_in_a_future():
    executor = LocalExecutor(lambda path: Bench(path, [], KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        executor.submit(JOB)


@pytest.mark.parametrize("record", [JOB, PAIR], ids=["job", "comparison"])
def test_jobs_travel_as_json(record):
    assert type(record).model_validate_json(record.model_dump_json()) == record
