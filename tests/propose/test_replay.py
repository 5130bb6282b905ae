"""The author that replays a folder."""

import hashlib
from types import SimpleNamespace

import pytest

from autokernel.errors import TargetNotFound
from autokernel.propose import Brief
from autokernel.propose.replay import ReplayProposer

KERNEL = 'LANGUAGE = "cpp"\n# {}\n'


def brief(task, sources=()):
    return Brief(SimpleNamespace(task=SimpleNamespace(id=task)), None, None, None, 0.1, (), tuple(sources), 1)


def sha(source):
    return hashlib.sha256(source.encode()).hexdigest()


def nothing(source):
    raise AssertionError("nothing is evaluated")


def test_files_come_in_the_order_of_their_names_each_once(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.py").write_text(KERNEL.format(name))
    author, sources = ReplayProposer(tmp_path), []
    for name in "abc":
        assert author.outlook(brief("01-x", sources)) is None
        proposal = author.propose(brief("01-x", sources), nothing)
        assert name in proposal.hypothesis and proposal.language == "cpp"
        sources.append(sha(proposal.source))
    assert author.propose(brief("01-x", sources), nothing) is None
    assert author.outlook(brief("01-x", sources)) == 0.0


def test_a_folder_named_after_the_task_is_its_own(tmp_path):
    (tmp_path / "02-y").mkdir()
    (tmp_path / "02-y" / "k.py").write_text(KERNEL.format("mine"))
    (tmp_path / "k.py").write_text(KERNEL.format("everyone's"))
    author = ReplayProposer(tmp_path)
    assert "mine" in author.propose(brief("02-y"), nothing).source
    assert "everyone's" in author.propose(brief("01-x"), nothing).source


def test_a_file_without_a_language_is_handed_over_all_the_same(tmp_path):
    (tmp_path / "k.py").write_text("def launch(:\n")
    assert ReplayProposer(tmp_path).propose(brief("01-x"), nothing).language == ""


def test_a_missing_folder_is_a_named_error(tmp_path):
    with pytest.raises(TargetNotFound):
        ReplayProposer(tmp_path / "none")
