"""The parent's side of the trust boundary: a sandbox that owns one zygote, and the children forked from it.

    with Sandbox(threads=2) as sandbox:
        child = sandbox.spawn(Kernel("source", text), sets, deadline=30)
        child.call(0, deadline=30)     # afterwards the child is stopped: what is in sets[0].outputs is what it wrote
        child.close()

One child lives at a time. Whatever a candidate does, a step ends by its deadline with a result or a `ChildFailure`,
everything it started is killed, and the next child is a fresh one. All clocks here are this process's own.

While a sandbox is open, this process is not dumpable (its /proc entries can't be read by others of the same user).
The sandbox must be used from the thread that opened it: Linux ties the death of the zygote to that thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from autokernel.errors import MissingExtra, SandboxDied, SandboxUnavailable
from autokernel.judge import isolation as shut
from autokernel.judge import protocol
from autokernel.judge.children import STDERR_BYTES, AnySet, Child, ChildFailure, Kernel, beginning, fixed_file
from autokernel.judge.protocol import Ack, Control, ControlRequest

__all__ = ["Child", "ChildFailure", "Kernel", "Sandbox"]

START_SECONDS = 120.0
CONTROL_SECONDS = 30.0


def _has_bindings() -> bool:
    """Whether NVIDIA's bindings of the driver are installed; PyTorch's CUDA builds bring them along."""
    from importlib.util import find_spec

    try:
        return find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def _leave_room() -> None:
    """Device memory that this process's allocator only keeps for later is the child's, when it gets scarce."""
    import torch

    free, total = torch.cuda.mem_get_info()
    if free < total // 4:
        torch.cuda.empty_cache()


class Sandbox:
    """Context manager. `isolation` is what it really is: "bubblewrap" or "plain".

    `threads`: what torch and OpenMP use in a child. `cpp_cache`: folder of compiled kernels, read-only inside; it must
    exist. `memory_limit_bytes`: private memory that a child may allocate beyond what it starts with. `device`: where
    kernels run, "cpu" or "cuda:N".

    Raises SandboxUnavailable (bubblewrap was asked for and does not work), SandboxDied (the zygote can't be started).
    """

    def __init__(
        self,
        *,
        isolation: Literal["auto", "bubblewrap", "plain"] = "auto",
        threads: int,
        cpp_cache: Path | None = None,
        memory_limit_bytes: int | None = None,
        device: str = "cpu",
    ) -> None:
        kind = device.partition(":")[0]
        if kind == "cuda" and not _has_bindings():
            raise MissingExtra(what="Judging on a GPU", package="cuda-bindings", install="cuda-bindings")
        problem = shut.bubblewrap_problem(kind) if isolation != "plain" else "not asked for"
        if isolation == "bubblewrap" and problem:
            raise SandboxUnavailable(isolation=isolation, detail=problem)
        self.isolation: Literal["bubblewrap", "plain"] = "plain" if problem else "bubblewrap"
        self.weakness = problem if isolation == "auto" else None  # why "auto" became plain
        self.threads, self.cpp_cache, self.memory_limit_bytes = threads, cpp_cache, memory_limit_bytes
        self.device, _, number = device.partition(":")
        self.index = int(number or 0)
        self.transport: Literal["ipc", "host"] = "ipc"  # how a GPU's buffers are shared; see `settle_transport`
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # TMPDIR of plain children, emptied before each
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._zygote_pid: int | None = None
        self._child: Child | None = None
        self._hidden = False
        self._cores = os.sched_getaffinity(0)

    def __enter__(self) -> Self:
        shut.hide_self()
        self._hidden = True
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process of the sandbox; returns once they are gone."""
        if self._child is not None:
            self._child.release()
            self._child = None
        self._stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        if self._hidden:
            shut.show_self()
            self._hidden = False

    def spawn(self, kernel: Kernel, sets: Sequence[AnySet], *, deadline: float) -> Child:
        """A fresh child with `kernel` loaded over `sets` (at most 200). An earlier child, if any, is ended first.

        `deadline`: seconds for all of it. Raises ChildFailure, SandboxDied.
        """
        if not 0 < len(sets) <= 200:
            raise ValueError(f"a child takes 1 to 200 sets, not {len(sets)}")
        self._prepare()
        until = time.monotonic() + deadline
        child = Child(self, kernel, sets)
        self._child = child
        nonce = protocol.new_nonce()
        with contextlib.ExitStack() as stack:
            fds = child.descriptors(stack, self._job(kernel, sets, nonce))
            self._fork(fds)
        child.begin(nonce, until)
        return child

    def _fork(self, fds: Sequence[int]) -> None:
        """A child with these descriptors; from a new zygote, with a new and empty folder, where the old one died
        (perhaps of what an earlier child left). Raises SandboxDied."""
        try:
            self.control(Control.fork, fds)
        except SandboxDied:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None
            self._start()
            self.control(Control.fork, fds)

    def _prepare(self) -> None:
        """End what an earlier child left, and see to it that there is a zygote."""
        if self._child is not None:
            self._child.close()
        if os.sched_getaffinity(0) != self._cores:  # in plain isolation a child can change this process's, too
            os.sched_setaffinity(0, self._cores)
        if not self._alive():
            self._stop()
            self._start()
        if self.device != "cpu":
            _leave_room()

    def program(
        self, command: Sequence[str], fds: Sequence[int], deadline: float, environment: Mapping[str, str] | None = None
    ) -> tuple[int | None, str]:
        """Run a program as a child is run: in this sandbox, alone, and all that it started is killed at its end.

        Its wait status (None: it did not end within `deadline` seconds, and was killed) and what its stderr begins
        with. `fds` are 200, 201, ... in it. What it does, prints or writes may be a candidate's doing.
        Raises SandboxDied.
        """
        self._prepare()
        job = {
            "kind": "program",
            "command": list(command),
            "environment": dict(environment or {}),
            "isolation": self.isolation,
            "memory_limit_bytes": self.memory_limit_bytes,
            "device": self.device,
            "layouts": [],
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as stack:
            for end in (ours, theirs):
                stack.callback(end.close)
            job_fd = os.memfd_create("autokernel-job", os.MFD_CLOEXEC)
            stack.callback(os.close, job_fd)
            os.pwrite(job_fd, json.dumps(job).encode(), 0)
            stderr = fixed_file(STDERR_BYTES)
            stack.callback(os.close, stderr)
            self._fork([theirs.fileno(), job_fd, stderr, *fds])
            try:
                until = time.monotonic() + deadline
                while (status := self.control(Control.status).wait_status) == -1 and time.monotonic() < until:
                    time.sleep(0.02)
            finally:
                self.control(Control.kill)
            return (None if status == -1 else status), beginning(stderr)

    def settle_transport(self) -> None:
        """On a GPU: find out, by trying, whether a child can open this process's device memory; else copies it is."""
        if self.device == "cpu":
            return
        import torch

        from autokernel.judge.cuda_buffers import CudaSet
        from autokernel.judge.cuda_memory import DriverError
        from autokernel.records import TensorSpec

        out = TensorSpec(name="out", dtype="int32", shape=(4,), stride=(1,))
        source = "def launch(x, out):\n    out.copy_(x + 1)\n"
        try:
            shared = CudaSet.create([torch.zeros(4, dtype=torch.int32, device="cuda")], [out])
            child = self.spawn(Kernel("source", source), [shared], deadline=START_SECONDS)
            try:
                child.call(0, START_SECONDS)
            finally:
                child.close()
            works = shared.outputs[0].tolist() == [1, 1, 1, 1]
        except (DriverError, ChildFailure) as error:
            if "cuIpc" not in str(error):  # whatever else is wrong, copies would not mend it
                raise SandboxDied(detail=f"a child could not use the GPU: {error}") from error
            works = False
        self.transport = "ipc" if works else "host"

    def control(self, operation: Control, fds: Sequence[int] = ()) -> Ack:
        """One command to the zygote. Raises SandboxDied after killing it if it doesn't answer."""
        nonce = protocol.new_nonce()
        try:
            if self._control is None:
                raise protocol.ChannelClosed
            socket.send_fds(self._control, [ControlRequest(operation, nonce).encode()], list(fds))
            data, _ = protocol.receive(self._control, protocol.ACK_BYTES, time.monotonic() + CONTROL_SECONDS)
            ack = Ack.decode(data, nonce)
        except (OSError, protocol.ChannelClosed, protocol.DeadlinePassed, protocol.ProtocolError) as error:
            self._stop()
            raise SandboxDied(detail=f"no answer to {operation.name} ({type(error).__name__})") from error
        if not ack.ok:
            self._stop()
            raise SandboxDied(detail=f"{ack.left} processes could not be reached by {operation.name}")
        return ack

    def _job(self, kernel: Kernel, sets: Sequence[AnySet], nonce: bytes) -> dict[str, Any]:
        return {
            "nonce": nonce.hex(),
            "kind": kernel.kind,
            "source": kernel.source,
            "reference": kernel.reference,
            "parameters": kernel.parameters,
            "artifact": kernel.artifact is not None,
            "copies": kernel.copies,
            "threads": self.threads,
            "isolation": self.isolation,
            "memory_limit_bytes": self.memory_limit_bytes,
            "layouts": [s.layout.to_json() for s in sets],
            "device": self.device,
            "index": self.index,
            "caches": {"TRITON_CACHE_DIR": None, **{name: str(path) for name, path in kernel.caches}},
        }

    def _alive(self) -> bool:
        return self._control is not None and self._process is not None and self._process.poll() is None

    def _start(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.set_device(self.index)  # "cuda" means one device in this process, its children and compilers
        if self.isolation == "plain" and self._folder is None:  # they share /tmp with everyone
            self._folder = tempfile.TemporaryDirectory(prefix="autokernel-children-", ignore_cleanup_errors=True)
        scratch = self._folder.name if self._folder is not None else None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        protocol.stamp_senders(ours)
        with theirs, open(os.devnull, "r+b") as null:
            config = {"fd": theirs.fileno(), "isolation": self.isolation, "device": self.device}
            log = os.memfd_create("autokernel-zygote-log", os.MFD_CLOEXEC)
            try:
                self._process = subprocess.Popen(
                    shut.command(self.isolation, config, self.cpp_cache, self.device),
                    stdin=null,
                    stdout=null,
                    stderr=log,
                    env=shut.environment(self.threads, self.cpp_cache, scratch),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent to handle
                    cwd="/",
                )
                self._control = ours
                theirs.close()
                data, self._zygote_pid = protocol.receive(ours, protocol.ACK_BYTES, time.monotonic() + START_SECONDS)
                Ack.decode(data, bytes(protocol.NONCE_BYTES))
            except (OSError, protocol.ChannelClosed, protocol.DeadlinePassed, protocol.ProtocolError) as error:
                self._stop()
                words = os.pread(log, 2000, 0).decode("utf-8", "replace").strip()
                raise SandboxDied(detail=f"the zygote did not start: {words[-600:] or type(error).__name__}") from error
            finally:
                os.close(log)

    def _stop(self) -> None:
        """End the zygote: it kills everything below it when its socket closes; by force if it doesn't."""
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            if self._zygote_pid is not None:
                with contextlib.suppress(ProcessLookupError):  # plain: its guard kills what is left below, then ends
                    os.kill(self._zygote_pid, signal.SIGKILL)
            try:
                process.wait(timeout=25)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
