"""The commands. Each is one short function: flags in, one call, the answer out. Heavy imports wait for the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

import autokernel
from autokernel.cli import options as o
from autokernel.cli.screen import INTERRUPTED, Screen, case_line, diagnosis, self_test_summary

if TYPE_CHECKING:
    from autokernel.records import Proof

app = typer.Typer(
    name="autokernel",
    help="Give it a PyTorch model: it finds where the time goes, writes faster kernels, and proves the result.",
    epilog="Exit status: 0 done (also when nothing pays), 1 the honest answer is no, 2 you can fix it, 3 our error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """The entry point of the `autokernel` command."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autokernel {autokernel.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Flags that belong to no command."""


@app.command()
def optimize(
    target: o.Target,
    device: o.Device = "auto",
    dtype: o.Dtype = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    image: o.Image = None,
    workload: o.Phase = o.Workload.prefill,
    random_weights: o.RandomWeights = False,
    trust_remote_code: o.RemoteCode = False,
    mode: o.ModeOption = o.Mode.inference,
    out: o.Out = None,
    budget: o.Budget = "30m",  # type: ignore[assignment]  # typer runs the parser on defaults too
    experiments: o.Experiments = None,
    proposer: o.Proposer = "search",
    isolation: o.IsolationOption = o.Isolation.auto,
    threads: o.Threads = None,
    require_gain: o.RequireGain = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Do the whole job: profile, write kernels, put the winners into the model, prove the result."""
    with Screen(as_json=as_json, quiet=quiet, verbose=verbose) as screen:
        from autokernel import api

        wanted = api.Options(
            device=device,
            dtype=dtype,
            batch=batch,
            seq=seq,
            image=image,
            workload=workload.value,
            random_weights=random_weights,
            trust_remote_code=trust_remote_code,
            mode=mode.value,
            out=out,
            budget_seconds=budget,
            experiments=experiments,
            proposer=proposer,
            isolation=isolation.value,
            threads=threads,
            require_gain=require_gain,
        )
        _finish(api.optimize_target(target, wanted, screen.say), screen)


@app.command()
def profile(
    target: o.Target,
    device: o.Device = "auto",
    dtype: o.Dtype = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    image: o.Image = None,
    workload: o.Phase = o.Workload.prefill,
    random_weights: o.RandomWeights = False,
    trust_remote_code: o.RemoteCode = False,
    threads: o.Threads = None,
    html: o.Html = None,
    trace: o.Trace = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Show where the time goes, how far from the roof that is, and what to do: by region and by source line."""
    with Screen(as_json=as_json, quiet=quiet, verbose=verbose) as screen:
        from autokernel import api, report

        wanted = api.Options(
            device=device,
            dtype=dtype,
            batch=batch,
            seq=seq,
            image=image,
            workload=workload.value,
            random_weights=random_weights,
            trust_remote_code=trust_remote_code,
            threads=threads,
        )
        for file in (html, trace):
            screen.check_writable(file)  # a minute of measuring is not to end in "permission denied"
        found = api.profile_target(target, wanted, screen.say, trace=trace)
        screen.show(report.profile_table(found), report.advice_text(found))
        screen.write_json(report.profile_facts(found))
        if html is not None:
            screen.write_file(html, report.profile_page(found))


@app.command()
def extract(
    target: o.Target,
    out: o.Out = None,
    device: o.Device = "auto",
    dtype: o.Dtype = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    image: o.Image = None,
    workload: o.Phase = o.Workload.prefill,
    random_weights: o.RandomWeights = False,
    trust_remote_code: o.RemoteCode = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Cut the model's regions out as task folders, and print their paths."""
    with Screen(quiet=quiet, verbose=verbose) as screen:
        from autokernel import api

        wanted = api.Options(
            device=device,
            dtype=dtype,
            batch=batch,
            seq=seq,
            image=image,
            workload=workload.value,
            random_weights=random_weights,
            trust_remote_code=trust_remote_code,
            out=out,
        )
        for folder in api.extract_target(target, wanted, screen.say):
            screen.write(str(folder))


@app.command()
def bench(
    reference: o.Reference,
    kernel: o.Kernel,
    device: o.Device = "auto",
    isolation: o.IsolationOption = o.Isolation.auto,
    threads: o.Threads = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Judge one kernel file: right or not, and how fast. Status 0 only when it is accepted."""
    with Screen(as_json=as_json, quiet=quiet, verbose=verbose) as screen:
        from autokernel import api
        from autokernel.judge.bench import run_bench
        from autokernel.report import judged

        wanted = api.Options(device=device, isolation=isolation.value, threads=threads).settled()
        verdict = run_bench(
            reference, kernel, isolation=wanted.isolation, threads=wanted.threads, device=wanted.device, say=screen.say
        )
        screen.show(judged(verdict, stages=quiet))
        screen.write_json(verdict.dump())
        raise typer.Exit(0 if verdict.verdict == "accepted" else 1)


@app.command()
def submit(
    run: o.Run,
    task: o.TaskName,
    kernel: o.Kernel,
    description: o.Description = "",
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Judge your kernel as an experiment of a run: commit it, keep it or revert it. Status 0 only when it is kept."""
    with Screen(as_json=as_json, quiet=quiet, verbose=verbose) as screen:
        from autokernel.loop import manifest

        manifest.read(run)  # a path that is no run is told before torch is imported
        from autokernel.loop.submit import submit as hand_in
        from autokernel.report import judged

        trial, verdict = hand_in(run, task, kernel, description=description, say=screen.say)
        screen.show(judged(verdict, trial))
        screen.write_json(verdict.dump())
        raise typer.Exit(0 if trial.decision == "kept" else 1)


@app.command()
def show(run: o.Run, number: o.Number, as_json: o.Json = False, verbose: o.Verbose = False) -> None:
    """Show one experiment: what it changed, and its verdict."""
    with Screen(as_json=as_json, verbose=verbose) as screen:
        from autokernel.loop.show import show as look_up
        from autokernel.report import judged

        found = look_up(run, number)
        screen.show_diff(found.diff)
        screen.show(judged(found.verdict, found.trial))
        screen.write_json(found.verdict.dump())


@app.command()
def resume(
    run: o.Run,
    budget: o.MoreBudget = None,
    experiments: o.Experiments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Go on with a run that was stopped, or give a finished one more time."""
    with Screen(as_json=as_json, quiet=quiet, verbose=verbose) as screen:
        from autokernel import api

        _finish(api.resume(run, screen.say, budget_seconds=budget, experiments=experiments), screen)


@app.command()
def verify(run: o.Run, as_json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = False) -> None:
    """Prove a run's result again: the model's outputs, and its time against every baseline."""
    with Screen(as_json=as_json, quiet=quiet, verbose=verbose) as screen:
        from autokernel import api

        _finish(api.verify_run(run, screen.say), screen)


@app.command()
def report(run: o.Run, as_json: o.Json = False, verbose: o.Verbose = False) -> None:
    """Summarise a run, also one that is still going on, and draw its progress.png."""
    with Screen(as_json=as_json, verbose=verbose) as screen:
        from autokernel.report import run_facts, summary
        from autokernel.viewing import draw, view_run

        view = view_run(run)
        screen.say(draw(view))
        screen.show(summary(view))
        screen.write_json(run_facts(view))


@app.command()
def doctor(
    self_test: o.SelfTest = False,
    device: o.Device = "auto",
    isolation: o.IsolationOption = o.Isolation.auto,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Check this machine by trying it: compiler, sandbox, git, load and more. Status 1 when something fails.

    With --self-test try the judge instead: every known cheat must be refused, every honest kernel accepted.
    """
    with Screen(as_json=as_json, verbose=verbose) as screen:
        if self_test:
            _self_test(screen, device, isolation.value)
        from autokernel.doctor import examine

        found = examine()
        screen.show(diagnosis(found.checks))
        screen.write_json(found.as_json())
        raise typer.Exit(0 if found.healthy else 1)


def _self_test(screen: Screen, device: str, isolation: Literal["auto", "bubblewrap", "plain"]) -> NoReturn:
    from autokernel import api
    from autokernel.doctor.self_test import self_test

    where = api.chosen_device(device)
    screen.say(f"the judge on {where}: cheats must be refused for what they are, honest kernels accepted")
    found = self_test(where, isolation, lambda case: screen.say(case_line(case)))
    screen.show(self_test_summary(found))
    screen.write_json(found.as_json())
    raise typer.Exit(0 if found.passed else 1)


def _finish(done: Any, screen: Screen) -> None:
    """Report a run that came to its end, and leave with the status its proof and its configuration ask for."""
    from autokernel.report import run_facts, summary

    view = done.view()
    screen.show(summary(view))
    screen.write_json(run_facts(view))
    if done.interrupted:
        raise typer.Exit(INTERRUPTED)  # whatever an earlier proof says
    raise typer.Exit(status(view.proof, view.config is not None and view.config.require_gain))


def status(proof: Proof | None, require_gain: bool) -> int:
    """1 when the proof failed, or a gain was demanded and there is none; 0 also for what can't be proved from here."""
    if proof is None:
        return int(require_gain)
    return int(proof.result == "failed" or (require_gain and proof.result != "gain"))
