"""Winners made for real: a model is captured, its tasks are written, the generator's first schedule is taken."""

import pytest
import torch

from autokernel.generate import coverage, generate, schedules
from autokernel.graph.capture import capture
from autokernel.install import Winner
from autokernel.task.folder import group, load, write


def make_winners(model, args, directory):
    """A kernel for every region of the model that the generator covers; not judged, but right (the tests check)."""
    winners = []
    for number, regions in enumerate(group(capture(model, args))):
        if regions[0].kind == "other":
            continue
        task = write(directory, number, regions)
        loaded = load(directory / task.id)
        if coverage(loaded.module).kind is not None:
            schedule = schedules(loaded.task, loaded.module, threads=torch.get_num_threads())[0]
            winners.append(Winner(loaded.task, generate(loaded.task, loaded.module, schedule), 1.5))
    return winners


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Threads that wait for each other make a busy machine ten times slower; nothing here needs two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def winners_of(tmp_path_factory):
    return lambda model, *args: make_winners(model, args, tmp_path_factory.mktemp("tasks"))
