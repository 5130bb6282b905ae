"""One child as the parent sees it: commands with deadlines, the parent's clock, and a proper name for every failure."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from autokernel.errors import SandboxDied
from autokernel.judge import protocol
from autokernel.judge.buffers import BufferSet
from autokernel.judge.protocol import Control, Operation, Problem, Reply, Request, Status
from autokernel.judge.samples import Sample, sample
from autokernel.records import Reason

if TYPE_CHECKING:
    from autokernel.judge.cuda_buffers import CudaSample, CudaSet
    from autokernel.judge.sandbox import Sandbox

AnySet: TypeAlias = "BufferSet | CudaSet"
AnySample: TypeAlias = "Sample | CudaSample"
T = TypeVar("T")

STDERR_BYTES = 1 << 16
_RANDOM = random.SystemRandom()
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)+", re.ASCII)
_REASONS = {
    Problem.none: Reason.exception,
    Problem.exception: Reason.exception,
    Problem.out_of_memory: Reason.out_of_memory,
    Problem.bad_source: Reason.bad_source,
    Problem.late_write: Reason.late_write,
}


class ChildFailure(Exception):
    """A candidate's step did not succeed. `detail` may hold text that the candidate wrote: data, for people to read."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Kernel:
    """What a child is to run.

    `source`: the kernel file; for `model_new` the file with `ModelNew`; for `eager` and `inductor` the reference with
    `Model`. `parameters`: names (`named_parameters`, then `named_buffers`) of the trailing inputs, when the file is a
    module that owns them. `reference`: for `model_new`, the file to take `get_init_inputs` from if its own has none.
    `artifact`: for `inductor`, the package made by `inductor.prepare`. `copies`: an opponent is charged for copying its
    results, as a `ModelNew` is. `caches`: environment variable → a folder that the child gets a copy of under that name
    (Triton's cache with this kernel in it).
    """

    kind: Literal["source", "model_new", "eager", "inductor"]
    source: str
    parameters: tuple[str, ...] = ()
    reference: str = ""
    artifact: Path | None = None
    copies: bool = False
    caches: tuple[tuple[str, Path], ...] = ()
    note: str = ""  # what the compiler could not do ahead

    @property
    def flushes(self) -> bool:
        """Whether its results are copied into the outputs after the clock has stopped (trusted opponents only)."""
        return self.kind in ("eager", "inductor") and not self.copies


class Child:
    """One forked process with a kernel loaded. Made by `Sandbox.spawn`. Every failure closes it.

    After each command the child and everything it started are stopped, and stay so until the next.
    """

    def __init__(self, sandbox: Sandbox, kernel: Kernel, sets: Sequence[AnySet]) -> None:
        self.kernel, self.sets = kernel, list(sets)
        self.claimed_seconds = 0.0  # the child's own clock, for the last command: a claim
        self.remark = ""  # what the child says of how it ran the last command: a claim
        self.pid: int | None = None  # in this process's pid namespace
        self._sandbox = sandbox
        self._channel, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        protocol.stamp_senders(self._channel)
        self._stderr = fixed_file(STDERR_BYTES)
        self._pidfd: int | None = None
        self._base_memory = 0
        self._peak_memory = 0
        self._open = True

    # --- what the judge calls -------------------------------------------------------------------------------------

    def call(self, index: int, deadline: float) -> None:
        """One launch over set `index`; then the child is stopped. `deadline` in seconds. Raises ChildFailure."""
        self._command(Request(Operation.call, protocol.new_nonce(), index, 1), deadline)

    def loop(self, calls: int, deadline: float, first: int = 0) -> float:
        """`calls` launches over the sets in rotation, from `first` on; seconds by the parent's clock.

        The clock runs from before the child is continued to the end of the parent's own read of a random sample of
        the outputs. After that the child is stopped and the sample compared with what is there now: what was written
        after "done" is a ChildFailure (late_write), and so is a part that still holds its poison (not_written), in the
        sets that were poisoned before this loop. For eager and inductor opponents, which are trusted, the clock stops
        at "done" and their results are copied to the outputs afterwards.
        """
        touched = sorted({(first + i) % len(self.sets) for i in range(min(calls, len(self.sets)))})
        request = Request(Operation.loop, protocol.new_nonce(), first % len(self.sets), calls)
        return self._command(request, deadline, self._samples([self.sets[i] for i in touched]))

    def replay(self, passes: int, deadline: float, meanwhile: Callable[[], None] | None = None) -> float:
        """On a GPU: `passes` times every set, each pass one CUDA graph where the kernel can be captured.

        As `loop`; `meanwhile` is called while the child works. What it puts into the sets must be there for the last
        pass, so it belongs into the first half of the time expected.
        """
        request = Request(Operation.replay, protocol.new_nonce(), 0, passes)
        return self._command(request, deadline, self._samples(self.sets), meanwhile)

    def part(self, count: int, deadline: float) -> None:
        """On a GPU: one pass over the first `count` sets, as `replay`; the others are none of the kernel's business."""
        self._command(Request(Operation.part, protocol.new_nonce(), count, 1), deadline)

    def listed(self, index: int, deadline: float) -> tuple[str, ...]:
        """One launch over set `index`; the names of what it ran, as the child tells (child_listing.py): a claim."""
        self._command(Request(Operation.listed, protocol.new_nonce(), index, 1), deadline)
        return tuple(name for name in self.remark.split() if _NAME.fullmatch(name))

    def _samples(self, touched: Sequence[AnySet]) -> list[AnySample]:
        if self.kernel.flushes:
            return []
        if self._sandbox.device == "cpu":
            return list(sample([one for one in touched if isinstance(one, BufferSet)]))
        from autokernel.judge.cuda_buffers import CudaSample, CudaSet

        chosen = [one for one in touched if isinstance(one, CudaSet) and one.layout.outputs]
        return [CudaSample(one) for one in dict.fromkeys((*chosen[-1:], *_RANDOM.sample(chosen, min(1, len(chosen)))))]

    def late_writes(self, seconds: float) -> list[int]:
        """Let the child run for `seconds` without a command, stop it, and name the sets whose outputs changed."""
        before = [one.snapshot() for one in self.sets]
        self._guarded(lambda: self._sandbox.control(Control.thaw))
        time.sleep(seconds)
        self._guarded(self._freeze)
        pairs = zip(self.sets, before, strict=True)
        return [index for index, (one, old) in enumerate(pairs) if one.differs(old)]  # type: ignore[arg-type]

    def peak_memory(self) -> int:
        """Bytes above what the child had when the kernel was loaded (diagnostic): resident at its peak, or, on a GPU,
        taken of the device's memory now."""
        self._read_memory()
        return max(0, self._peak_memory - self._base_memory)

    def close(self) -> None:
        """Kill the child and everything it started; returns once nothing is left. Idempotent."""
        if not self._open:
            return
        self._read_memory()
        self.release()
        if self._sandbox._child is self:
            self._sandbox._child = None
        with contextlib.suppress(SandboxDied):  # then the zygote was killed, and everything below it: as asked
            self._sandbox.control(Control.kill)

    def has_answered(self) -> bool:
        """Whether an answer is there already, unread."""
        return self._unexpected()

    # --- used by Sandbox ------------------------------------------------------------------------------------------

    def descriptors(self, stack: contextlib.ExitStack, job: dict[str, Any]) -> list[int]:
        """What the zygote hands to the child; those that are only for that are closed with `stack`."""
        stack.callback(self._theirs.close)
        data = json.dumps(job).encode()
        job_fd = os.memfd_create("autokernel-job", os.MFD_CLOEXEC)
        stack.callback(os.close, job_fd)
        os.pwrite(job_fd, data, 0)
        fds = [self._theirs.fileno(), job_fd, self._stderr]
        if self.kernel.artifact is not None:
            artifact = os.open(self.kernel.artifact, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, artifact)
            fds.append(artifact)
        return [*fds, *(s.fd for s in self.sets if s.fd is not None)]

    def begin(self, nonce: bytes, until: float) -> None:
        """Wait until the kernel is loaded, then stop the child."""
        self._guarded(lambda: self._reply(nonce, Status.hello, until, None))
        self._guarded(lambda: self._reply(nonce, Status.loaded, until, self.pid))
        self._guarded(self._freeze)
        self._base_memory = self._memory("VmRSS")

    def release(self) -> None:
        """Close descriptors only."""
        self._open = False
        self._channel.close()
        self._theirs.close()
        for fd in (self._stderr, self._pidfd):
            if fd is not None:
                os.close(fd)
        self._stderr, self._pidfd = -1, None

    # --- one command ----------------------------------------------------------------------------------------------

    def _command(
        self,
        request: Request,
        deadline: float,
        samples: Sequence[AnySample] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> float:
        if not self._open:
            raise ValueError("this child is closed")
        return self._guarded(lambda: self._run(request, deadline, samples, meanwhile))

    def _run(
        self, request: Request, deadline: float, samples: Sequence[AnySample], meanwhile: Callable[[], None] | None
    ) -> float:
        if self._unexpected():
            raise protocol.ProtocolError("an answer before a command")
        self.still()
        begin = time.perf_counter()
        until = time.monotonic() + deadline
        if self._sandbox.device == "cpu":
            self._sandbox.control(Control.thaw)
            self._send(request)
        else:  # the child finds its command when it wakes, while this process waits for the zygote's answer
            self._send(request)
            self._sandbox.control(Control.thaw)
        if meanwhile is not None:
            meanwhile()
        reply = self._reply(request.nonce, Status.done, until, self.pid)
        for one in samples:
            one.read()
        seconds = time.perf_counter() - begin
        if self.kernel.flushes:
            flush = Request(Operation.flush, protocol.new_nonce())
            self._send(flush)
            self._reply(flush.nonce, Status.done, until, self.pid)
        self._freeze()
        self.claimed_seconds, self.remark = reply.claimed_seconds, reply.text
        self._check(samples, written=meanwhile is None)
        first, calls = request.first, request.calls
        if request.operation in (Operation.replay, Operation.part):
            first, calls = 0, request.first or len(self.sets)
        for index in range(first, first + min(calls, len(self.sets))):
            self.sets[index % len(self.sets)].armed = False
        return seconds

    def still(self) -> None:
        """Raises ChildFailure where the child ran while it was stopped (what it saw and did then was not its time), or
        changed the cores, priority or limits that later children would inherit."""
        if self._sandbox.control(Control.still).awake:
            detail = "it ran while it was stopped, or changed the settings of the process that others are started from"
            raise ChildFailure(Reason.protocol, detail)

    @staticmethod
    def _check(samples: Sequence[AnySample], written: bool) -> None:
        """`written`: not what was poisoned meanwhile, perhaps a moment too late; who did that looks for it."""
        if any(one.late() for one in samples):
            raise ChildFailure(Reason.late_write, "outputs were still being written after the kernel had returned")
        untouched = sum(one.untouched() for one in samples) if written else 0
        if untouched:
            detail = f"{untouched} sampled parts of the outputs were not written in a loop"
            raise ChildFailure(Reason.not_written, detail)

    def _send(self, request: Request) -> None:
        try:
            self._channel.send(request.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, BrokenPipeError, ConnectionError) as error:
            raise protocol.ChannelClosed from error

    def _reply(self, nonce: bytes, wanted: Status, until: float, sender: int | None) -> Reply:
        data, pid = protocol.receive(self._channel, protocol.REPLY_BYTES, until)
        if pid is None or pid <= 0 or (sender is not None and pid != sender):
            raise protocol.ProtocolError("an answer from another process")
        if sender is None:
            self.pid = pid
            try:
                self._pidfd = os.pidfd_open(pid)
            except ProcessLookupError:  # it has ended by now; what it said before is still to be read
                self._pidfd = None
        reply = Reply.decode(data, nonce)
        if reply.status is Status.failed:
            raise ChildFailure(_REASONS[reply.problem], reply.text or "no message")
        if reply.status is not wanted:
            raise protocol.ProtocolError(f"{reply.status.name} where {wanted.name} was due")
        return reply

    def _unexpected(self) -> bool:
        """Whether the child has said something unasked (or closed its channel: then the next receive tells)."""
        try:
            return bool(self._channel.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        except (BlockingIOError, ConnectionError):
            return False

    def _freeze(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)  # at once; the zygote sees to the rest
        ack = self._sandbox.control(Control.freeze)
        if ack.wait_status != -1:
            raise protocol.ChannelClosed
        if self._unexpected():
            raise protocol.ProtocolError("more than one answer")

    def _guarded(self, step: Callable[[], T]) -> T:
        """Run a step; whatever goes wrong, the child is ended and the failure has its proper name."""
        try:
            return step()
        except ChildFailure:
            self.close()
            raise
        except protocol.DeadlinePassed as error:
            self.close()
            raise ChildFailure(Reason.timeout, "no answer within the deadline; killed") from error
        except protocol.ProtocolError as error:
            self.close()
            raise ChildFailure(Reason.protocol, str(error)) from error
        except (protocol.ChannelClosed, SandboxDied) as error:
            failure = self._obituary(error)
            self.close()
            raise failure from error
        except BaseException:
            self.close()
            raise

    def _obituary(self, error: Exception) -> ChildFailure:
        """How a child that closed its channel ended."""
        words = beginning(self._stderr)
        tail = f"; its stderr begins: {words[:1200]}" if words else ""
        try:
            if isinstance(error, SandboxDied):
                raise error
            status = self._wait_status(time.monotonic() + 2)
        except SandboxDied as dead:
            return ChildFailure(Reason.died, f"the sandbox was killed with it ({dead.values['detail']}){tail}")
        if status == -1:
            return ChildFailure(Reason.protocol, f"closed its channel and went on running{tail}")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            known = number in set(signal.Signals)  # of the real-time ones only the first and last have names
            return ChildFailure(
                Reason.died, f"killed by {signal.Signals(number).name if known else f'signal {number}'}{tail}"
            )
        return ChildFailure(Reason.died, f"exited with status {os.WEXITSTATUS(status)} before answering{tail}")

    def _wait_status(self, until: float) -> int:
        """The child's wait status; -1 when it is still running by then. Raises SandboxDied."""
        while (status := self._sandbox.control(Control.status).wait_status) == -1 and time.monotonic() < until:
            time.sleep(0.005)
        return status

    def _read_memory(self) -> None:
        self._peak_memory = max(self._peak_memory, self._memory("VmHWM"))

    def _memory(self, field: str) -> int:
        if self._sandbox.device == "cpu":
            return _memory(self.pid, field)
        import torch

        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()  # what isn't this process's own: the child's, and constants


def fixed_file(size: int) -> int:
    """An anonymous file that can't grow: writes beyond its end fail instead of filling memory."""
    import fcntl

    fd = os.memfd_create("autokernel-stderr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def beginning(fd: int) -> str:
    """What was written to such a file, as text for people."""
    words = os.pread(fd, STDERR_BYTES, 0).split(b"\0", 1)[0]
    return protocol.printable(words.decode("utf-8", "replace")).strip()


def _memory(pid: int | None, field: str) -> int:
    """Bytes of a field of /proc/PID/status; 0 when the process is gone."""
    if pid is None:
        return 0
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = dict(line.split(":", 1) for line in file)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(lines[field].split()[0]) * 1024 if field in lines else 0
