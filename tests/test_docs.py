"""What is written agrees with what is there: commands, flags, columns, links, and CI's use of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from autokernel import settings
from autokernel.cli.main import app
from autokernel.records import Outcome, Trial

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs/reference/commands.md").read_text()
COMMANDS = typer.main.get_command(app).commands
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])


def flags(command):
    return {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")}


def section(name):
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", REFERENCE, re.M | re.S)[1]


def test_the_reference_has_a_section_for_every_command_and_for_no_other():
    assert re.findall(r"^## (\w+)$", REFERENCE, re.M) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_stands_in_its_section(name):
    text = section(name)
    missing = [flag for flag in flags(COMMANDS[name]) if flag.startswith("--") and f"`{flag}`" not in text]
    assert [flag for flag in missing if not (flag == "--kernel" and f"autokernel {name}" in text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_section_promises_a_flag_that_is_not_there(name):
    promised = set(re.findall(r"`(--[a-z-]+)", section(name)))
    assert promised <= flags(COMMANDS[name])


def test_the_readme_lists_every_command():
    assert set(re.findall(r"^\| `autokernel (\w+)", README, re.M)) == set(COMMANDS)


def test_every_command_a_page_shows_exists():
    for page in PAGES:
        blocks = "\n".join(re.findall(r"```bash\n(.*?)```", page.read_text(), re.S))
        for line in re.findall(r"^(?:.*&& )?autokernel (.*)$", blocks, re.M):
            name, *rest = line.split("#")[0].split()
            assert name in COMMANDS, f"{page}: {line}"
            assert {word for word in rest if word.startswith("--")} <= flags(COMMANDS[name]), f"{page}: {line}"


def commands_of_readme():
    return re.findall(r"```bash\n(python3 -m venv .*)\n```", README)


def test_the_readme_has_two_commands_each_one_line():
    main, tests = commands_of_readme()
    assert main.endswith("&& autokernel optimize examples/llama_mini.py")
    assert tests.endswith("pip install -c constraints-cpu.txt -e '.[test]' && pytest")
    assert (ROOT / "examples/llama_mini.py").exists()
    assert "torch==" in (ROOT / "constraints-cpu.txt").read_text()


def test_ci_runs_the_readmes_test_command_as_it_stands():
    assert commands_of_readme()[1] in (ROOT / ".ci/run").read_text().splitlines()


def test_contributing_repeats_the_readmes_test_command():
    assert commands_of_readme()[1] in (ROOT / "CONTRIBUTING.md").read_text().splitlines()


@pytest.mark.parametrize("script", [".ci/run", "scripts/check"])
def test_scripts_are_executable_and_parse(script):
    assert (ROOT / script).stat().st_mode & 0o111
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_the_run_folder_page_describes_every_column_of_results_tsv():
    page = (ROOT / "docs/reference/run-folder.md").read_text()
    table = page.split("## results.tsv")[1].split("## Git")[0]
    named = [name for cell in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", cell)]
    assert named == list(Trial.model_fields)


def test_the_verdict_page_explains_every_outcome():
    page = (ROOT / "docs/concepts/verdict.md").read_text()
    assert re.findall(r"^\| (\w+) \|", page, re.M)[1:] == [outcome.value for outcome in Outcome]


def test_the_settings_page_lists_every_key_with_its_variable():
    page = (ROOT / "docs/reference/settings.md").read_text()
    keys = dict(re.findall(r"^\| `(\w+)` \| `(\w+)`", page, re.M))
    assert keys == {key: f"AUTOKERNEL_{key.upper()}" for key in settings.Settings.__dataclass_fields__}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert set(re.findall(r": (\S+\.md)$", config, re.M)) == pages


def test_the_kernel_file_on_its_page_compiles_and_adds(tmp_path):
    from autokernel.languages.cpp.language import LOADER_DIRECTORY, Cpp

    page = (ROOT / "docs/reference/kernel-file.md").read_text()
    source = re.search(r"```python\n(.*?)```", page, re.S)[1]
    assert not [finding for finding in Cpp().check(source) if finding.fatal]
    artifact = Cpp().compile(source)
    (tmp_path / "kernel.py").write_text(source)
    (tmp_path / "use.py").write_text(
        "import torch, kernel\n"
        "a, b, out = torch.randn(3, 1001), torch.randn(3, 1001), torch.full((3, 1001), float('nan'))\n"
        "kernel.launch(a, b, out)\n"
        "assert torch.equal(out, a + b)\n"
    )
    env = os.environ | {"PYTHONPATH": str(LOADER_DIRECTORY), "AUTOKERNEL_CPP_CACHE": str(artifact.directory)}
    subprocess.run([sys.executable, "use.py"], cwd=tmp_path, env=env, check=True)
