import sys

import pytest

from autokernel import registry
from autokernel.errors import MissingExtra, UnknownName
from autokernel.languages.cpp.language import Cpp
from autokernel.testing.authors import ScriptedProposer


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A third-party distribution: a module, and the metadata that pip leaves for its entry points."""

    def make(source, entry="mine = their_authors:Mine"):
        (tmp_path / "their_authors.py").write_text(source)
        info = tmp_path / "their_kernels-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-kernels\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[autokernel.proposers]\n{entry}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield make
    sys.modules.pop("their_authors", None)


def test_a_short_name_gives_the_built_in_class():
    assert registry.resolve("language", "cpp") is Cpp


def test_a_dotted_path_gives_any_class():
    assert registry.resolve("proposer", "autokernel.testing.authors:ScriptedProposer") is ScriptedProposer


def test_an_entry_point_gives_the_class_of_an_installed_package(plugin):
    plugin("class Mine:\n    name = 'mine'\n")
    assert registry.resolve("proposer", "mine").name == "mine"
    assert registry.known("proposer") == ("search", "replay", "mine")


def test_nothing_is_imported_by_asking_for_the_names(plugin):
    plugin("raise RuntimeError('imported too early')\n")
    assert "mine" in registry.known("proposer")
    assert "their_authors" not in sys.modules


@pytest.mark.parametrize(
    "name",
    ["nobody", "no.such.module:Class", "autokernel.testing.authors:Nobody", "autokernel.testing.authors:kernel"],
)
def test_a_name_that_leads_nowhere_lists_the_known_ones(name):
    with pytest.raises(UnknownName, match="Known: search, replay"):
        registry.resolve("proposer", name)


def test_a_missing_package_answers_with_the_line_that_installs_it(plugin):
    plugin("import surely_not_installed_anywhere.deep\nclass Mine: pass\n")
    with pytest.raises(MissingExtra) as caught:
        registry.resolve("proposer", "mine")
    assert "needs the package surely_not_installed_anywhere" in str(caught.value)
    assert "pip install 'their-kernels'" in str(caught.value)


def test_an_extra_of_our_own_is_named_as_such(monkeypatch, tmp_path):
    (tmp_path / "talks_to_a_model.py").write_text("import surely_not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(
        registry._BUILTIN["proposer"], "talker", registry._Builtin("talks_to_a_model:Talker", extra="llm")
    )
    with pytest.raises(MissingExtra, match=r"pip install 'autokernel-torch\[llm\]'"):
        registry.resolve("proposer", "talker")
