import subprocess
import sys


def test_the_loops_policy_and_journal_import_neither_torch_nor_numpy():
    modules = "decide, schedule, folder, journal, show, signals, wording, run, noise"
    code = (
        f"from autokernel.loop import {modules}\nimport sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
