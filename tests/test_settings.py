import subprocess
import sys

import pytest

from autokernel import settings
from autokernel.errors import BadSetting


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("CXX", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "CACHE_DIR", "CXX", "ISOLATION", "THREADS"):
        monkeypatch.delenv(f"AUTOKERNEL_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def configured(home, text):
    path = home / ".config" / "autokernel" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_without_file_and_environment_the_defaults_hold(home):
    assert settings.load() == settings.Settings(home / ".cache" / "autokernel", None, "auto", None)


def test_the_file_is_read(home):
    configured(home, 'cache_dir = "~/kernels"\ncxx = "clang++"\nisolation = "plain"\nthreads = 3\n')
    assert settings.load() == settings.Settings(home / "kernels", "clang++", "plain", 3)


def test_the_environment_wins_over_the_file(home, monkeypatch):
    configured(home, 'cxx = "clang++"\nthreads = 3\n')
    monkeypatch.setenv("AUTOKERNEL_THREADS", "1")
    monkeypatch.setenv("CXX", "g++-13")
    found = settings.load()
    assert (found.threads, found.cxx) == (1, "g++-13")
    monkeypatch.setenv("AUTOKERNEL_CXX", "g++-14")
    assert settings.load().cxx == "g++-14"


def test_xdg_folders_and_a_named_file_are_honoured(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    assert settings.load().cache_dir == home / "cache" / "autokernel"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "etc"))
    assert settings.config_file() == home / "etc" / "autokernel" / "config.toml"
    monkeypatch.setenv("AUTOKERNEL_CONFIG", str(home / "mine.toml"))
    (home / "mine.toml").write_text("threads = 7")
    assert settings.load().threads == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thread = 2", "thread: 2 is not valid"),
        ("threads = 0", "at least 1"),
        ("threads = true", "at least 1"),
        ('threads = "many"', "at least 1"),
        ('isolation = "docker"', "Use one of: auto, bubblewrap, plain"),
        ('cache_dir = "here"', "the path is relative"),
        ("cxx = 3", "a text is expected"),
        ("cxx = [", "configuration file"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_setting(home, text, said):
    path = configured(home, text)
    with pytest.raises(BadSetting, match=said) as caught:
        settings.load()
    assert str(path) in str(caught.value)


def test_a_bad_variable_is_named(home, monkeypatch):
    monkeypatch.setenv("AUTOKERNEL_ISOLATION", "none")
    with pytest.raises(BadSetting, match="AUTOKERNEL_ISOLATION: none"):
        settings.load()


def test_the_cache_folder_is_made_and_one_that_can_not_be_is_named(home, monkeypatch):
    assert settings.cache_dir() == home / ".cache" / "autokernel"
    assert settings.cache_dir().is_dir()
    (home / "file").write_text("")
    monkeypatch.setenv("AUTOKERNEL_CACHE_DIR", str(home / "file" / "below"))
    with pytest.raises(BadSetting, match="can't be made"):
        settings.cache_dir()


def test_settings_registry_and_records_import_neither_torch_nor_numpy():
    code = (
        "import autokernel.settings, autokernel.registry, autokernel.records, autokernel.errors, sys\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
