"""A real process for test_kill.py: opens the run and writes experiments as fast as it can until it is killed."""

import itertools
import sys
from pathlib import Path

from autokernel.loop import Budget
from autokernel.loop.folder import RunFolder
from autokernel.loop.run import run_loop
from autokernel.records import Proposal
from autokernel.testing.authors import RecordedDevice, kernel
from autokernel.testing.paper import loaded


class Endless:
    name = "endless"

    def propose(self, brief, evaluate):
        """Every third kernel is faster than all before it, every fifth is wrong."""
        for number in itertools.count(len(brief.sources)):
            us = 1000 / (1 + number) if number % 3 == 0 else 2000.0 + number
            return Proposal(source=kernel(us, wrong=number % 5 == 4), language="cpp", author=self.name)

    def observe(self, task, trial):
        pass

    def outlook(self, brief):
        return 0.1


def main(path):
    with RunFolder.open(Path(path), writable=True) as folder:
        names = folder.task_ids()
        device = RecordedDevice(dict.fromkeys(names, 1e6), dict.fromkeys(names, 9e5), ceiling_us=1e-9)
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        run_loop(folder, loaded(folder), folder.profile(), Endless(), device, budget=Budget(), say=lambda line: None)


if __name__ == "__main__":
    main(sys.argv[1])
