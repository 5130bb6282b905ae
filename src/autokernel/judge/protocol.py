"""The records that parent, zygote and child exchange: fixed size, strictly parsed, nothing unpickled.

A packet is one record on a `SOCK_SEQPACKET` socket. What comes from a child may have been written by the candidate:
wrong length, magic, nonce, enum value, or a number that isn't one is a `ProtocolError`, and so is a sender that is
not the child itself (the kernel stamps each packet with the sender's process id). Text is bounded, decoded with
replacement, and shown to people only.

Forging a well-formed "done" gains nothing: the parent then freezes the child and compares what is in the outputs.
Standard library only: the child imports this file.
"""

from __future__ import annotations

import enum
import math
import secrets
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, TypeVar

NONCE_BYTES = 16
TEXT_BYTES = 2048

_REQUEST = struct.Struct("<4sBxHQ16s")  # magic, operation, first set, calls, nonce
_REPLY = struct.Struct(f"<4sBBHd16s{TEXT_BYTES}s")  # magic, status, problem, text length, claimed seconds, nonce, text
_CONTROL = struct.Struct("<4sBxxx16s")  # magic, operation, nonce
_ACK = struct.Struct("<4sBBxxii16s")  # magic, ok, awake, wait status of the child or -1, processes left, nonce
_REQUEST_MAGIC, _REPLY_MAGIC, _CONTROL_MAGIC, _ACK_MAGIC = b"AKq1", b"AKr1", b"AKc1", b"AKa1"
E = TypeVar("E", bound=enum.IntEnum)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


class ProtocolError(Exception):
    """Bytes that are no record of this protocol, or a record at the wrong time."""


class ChannelClosed(Exception):
    """The other side closed the socket (usually: its process ended)."""


class DeadlinePassed(Exception):
    """Nothing arrived in time."""


class Operation(enum.IntEnum):
    """Parent → child."""

    call = 1  # one launch over set `first`
    loop = 2  # `calls` launches over the sets in rotation, beginning with set `first`
    replay = 4  # on a GPU: `calls` passes over all sets, each pass one CUDA graph
    part = 5  # on a GPU: one pass over the first `first` sets, as a graph of its own
    listed = 6  # as `call`; the answer's text names what it ran
    flush = 3  # trusted opponents only: copy what was returned last into the outputs


class Status(enum.IntEnum):
    """Child → parent."""

    hello = 1  # alive; no candidate code has run yet
    loaded = 2
    done = 3
    failed = 4


class Problem(enum.IntEnum):
    """What a child says went wrong: a claim, but one that can only harm the candidate."""

    none = 0
    exception = 1
    out_of_memory = 2
    bad_source = 3
    late_write = 4  # it left work behind when it returned


class Control(enum.IntEnum):
    """Parent → zygote."""

    fork = 1  # carries descriptors: the child's socket, its job, its stderr, then one for each set
    freeze = 2  # stop every process but the zygote; answered once all have stopped
    thaw = 3
    kill = 4  # kill every process but the zygote; answered once none is left
    status = 5  # nothing but an answer
    still = 6  # whether nothing has run since all was stopped; `Ack.awake` if something has


@dataclass(frozen=True)
class Request:
    operation: Operation
    nonce: bytes
    first: int = 0
    calls: int = 1

    def encode(self) -> bytes:
        return _REQUEST.pack(_REQUEST_MAGIC, self.operation, self.first, self.calls, self.nonce)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        magic, operation, first, calls, nonce = _unpack(_REQUEST, data)
        _expect(magic, _REQUEST_MAGIC)
        return cls(_member(Operation, operation), nonce, first, calls)


@dataclass(frozen=True)
class Reply:
    status: Status
    nonce: bytes
    problem: Problem = Problem.none
    claimed_seconds: float = 0.0
    text: str = ""

    def encode(self) -> bytes:
        text = self.text.encode("utf-8", "replace")[:TEXT_BYTES]
        return _REPLY.pack(_REPLY_MAGIC, self.status, self.problem, len(text), self.claimed_seconds, self.nonce, text)

    @classmethod
    def decode(cls, data: bytes, nonce: bytes) -> Reply:
        """Parse a reply to the request that had this nonce. Raises ProtocolError."""
        magic, status, problem, length, claimed, echoed, text = _unpack(_REPLY, data)
        _expect(magic, _REPLY_MAGIC)
        if not secrets.compare_digest(echoed, nonce):
            raise ProtocolError("a reply to another request")
        if length > TEXT_BYTES or any(text[length:]):
            raise ProtocolError("text of an impossible length")
        if not (math.isfinite(claimed) and claimed >= 0):
            raise ProtocolError("a claimed time that is no time")
        words = bytes(text[:length]).decode("utf-8", "replace")
        return cls(_member(Status, status), echoed, _member(Problem, problem), claimed, printable(words))


@dataclass(frozen=True)
class ControlRequest:
    operation: Control
    nonce: bytes

    def encode(self) -> bytes:
        return _CONTROL.pack(_CONTROL_MAGIC, self.operation, self.nonce)

    @classmethod
    def decode(cls, data: bytes) -> ControlRequest:
        magic, operation, nonce = _unpack(_CONTROL, data)
        _expect(magic, _CONTROL_MAGIC)
        return cls(_member(Control, operation), nonce)


@dataclass(frozen=True)
class Ack:
    """`wait_status`: the child's, as `os.waitpid` gives it; -1 while it runs. `left`: processes besides the zygote.

    `awake`: something ran that should have been stopped, or changed the zygote's settings.
    """

    ok: bool
    nonce: bytes
    wait_status: int = -1
    left: int = 0
    awake: bool = False

    def encode(self) -> bytes:
        return _ACK.pack(_ACK_MAGIC, self.ok, self.awake, self.wait_status, self.left, self.nonce)

    @classmethod
    def decode(cls, data: bytes, nonce: bytes) -> Ack:
        magic, ok, awake, wait_status, left, echoed = _unpack(_ACK, data)
        _expect(magic, _ACK_MAGIC)
        if echoed != nonce or ok not in (0, 1) or awake not in (0, 1):
            raise ProtocolError("an answer to another request")
        return cls(bool(ok), echoed, wait_status, left, bool(awake))


REQUEST_BYTES, REPLY_BYTES, CONTROL_BYTES, ACK_BYTES = _REQUEST.size, _REPLY.size, _CONTROL.size, _ACK.size


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def printable(text: str) -> str:
    """`text` without control characters (terminal escapes above all), line breaks and tabs kept."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def stamp_senders(sock: socket.socket) -> None:
    """Let the kernel stamp each packet received on `sock` with its sender's process id, in this process's namespace."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(sock: socket.socket, size: int, until: float) -> tuple[bytes, int | None]:
    """One packet of exactly `size` bytes, and the sender's process id if `stamp_senders` was called.

    `until` is on `time.monotonic()`'s clock. Raises DeadlinePassed, ChannelClosed, ProtocolError.
    """
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(max(0.0, until - time.monotonic()) * 1000):
        if time.monotonic() >= until:
            raise DeadlinePassed
    try:
        # Room for credentials only: descriptors that a candidate sends along don't fit and are dropped by the kernel.
        data, ancillary, _, _ = sock.recvmsg(size + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
    except ConnectionError as error:
        raise ChannelClosed from error
    if not data:
        raise ChannelClosed
    if len(data) != size:
        raise ProtocolError(f"a packet of {'more than ' if len(data) > size else ''}{min(len(data), size)} bytes")
    sender: int | None = None
    for level, kind, body in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(body) == _CREDENTIALS.size:
            sender = _CREDENTIALS.unpack(body)[0]
    return data, sender


def _unpack(form: struct.Struct, data: bytes) -> tuple[Any, ...]:
    if len(data) != form.size:
        raise ProtocolError(f"{len(data)} bytes where a record has {form.size}")
    return form.unpack(data)


def _expect(magic: bytes, wanted: bytes) -> None:
    if magic != wanted:
        raise ProtocolError("bytes that are no record")


def _member(kind: type[E], value: int) -> E:
    try:
        return kind(value)
    except ValueError as error:
        raise ProtocolError(f"{value} is no {kind.__name__.lower()}") from error
