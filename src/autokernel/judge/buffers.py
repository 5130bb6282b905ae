"""Shared memory between parent and child: the inputs and outputs of one call, with canaries and poison.

One anonymous memory file (memfd) holds one set. Each buffer has canary bytes on both sides and its own storage, so that
shape, strides, storage offset and misalignment (address modulo 64) are the same in parent and child. Outputs are
poisoned before a call with one of two byte patterns: an element that still holds the poison under both was not written.

Nothing secret lies in this memory: no expected value and no seed. The child may write all of it, the inputs and the
canaries included; that is how damage is seen (`inputs_changed`, `canaries_intact`) instead of hidden by a crash.

The parent fills and compares with numpy, one thread: torch's OpenMP threads spin for a while after their work, on the
cores that the child is about to be timed on.

Not covered: a stray write that lands beyond the canaries (4 KiB) and outside every buffer.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autokernel.judge.turns import Turn, regular, sign_word

if TYPE_CHECKING:
    from autokernel.records import TensorSpec

CANARY_BYTES = 4096
_LINE = 64
_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Words = npt.NDArray[Any]  # the bits of elements as unsigned integers, `Slot.words` of them an element

# Quiet NaNs with a payload nothing computes, and huge negative numbers; for integers merely unlikely values. Pattern 0
# and 1 differ in every element, so that a value that happens to equal one can't equal the other.
_POISON: dict[torch.dtype, tuple[int, int]] = {
    torch.float64: (0x7FF8A5A5A5A5A5A5, 0xFFE69676969696A7),
    torch.float32: (0x7FE5A5A5, 0xFE967699),
    torch.bfloat16: (0x7FE5, 0xFE96),
    torch.float16: (0x7EA5, 0xFB96),
}
_POISON_INTEGER: dict[int, tuple[int, int]] = {
    1: (0xA5, 0x5A),
    2: (0xA5A6, 0x5A59),
    4: (0xA5A6A7A8, 0x5A595857),
    8: (0xA5A6A7A8A9AAABAC, 0x5A59585756555453),
}


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies. `base`: first byte of its storage in the file; the other numbers are in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    base: int
    extent: int  # elements of storage, `offset` included; at least 1

    @property
    def itemsize(self) -> int:
        return torch_dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return self.extent * self.itemsize

    @property
    def words(self) -> int:
        return 2 if torch_dtype(self.dtype).is_complex else 1

    def view(self, memory: mmap.mmap) -> Tensor:
        flat = torch.frombuffer(memory, dtype=torch_dtype(self.dtype), count=self.extent, offset=self.base)
        return flat.as_strided(self.shape, self.stride, self.offset)

    def bits(self, memory: mmap.mmap) -> Words:
        """The whole storage as one dimension of words."""
        word = _WORD[self.itemsize // self.words]
        return np.frombuffer(memory, dtype=word, count=self.extent * self.words, offset=self.base)


@dataclass(frozen=True)
class Layout:
    """What a child needs to map a set; plain numbers."""

    size: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    device: str = "cpu"
    handle: str | None = None  # of CUDA IPC, for memory on a GPU

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        def slots(name: str) -> tuple[Slot, ...]:
            return tuple(Slot(**{**s, "shape": tuple(s["shape"]), "stride": tuple(s["stride"])}) for s in data[name])

        return cls(data["size"], slots("inputs"), slots("outputs"), data["device"], data["handle"])


def torch_dtype(name: str) -> torch.dtype:
    """ "float32" → torch.float32."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no dtype")
    return found


def map_layout(fd: int, layout: Layout) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of a set as tensors over the shared memory; pages are faulted in now, not during a timing."""
    memory = mmap.mmap(fd, layout.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return [slot.view(memory) for slot in layout.inputs], [slot.view(memory) for slot in layout.outputs]


class BufferSet:
    """The inputs and outputs of one call in shared memory; made, filled and compared by the parent.

    The source tensors given to `create` and `rewrite` are kept (not copied) to see whether inputs were changed: don't
    write to them while the set is in use.
    """

    def __init__(self, layout: Layout, names: Sequence[str]) -> None:
        self.layout = layout
        self.names = tuple(names)  # "input 0", ..., then the outputs' own names
        self.pattern = 0
        self.armed = False  # poisoned, and no launch over it since
        self.fd = os.memfd_create("autokernel-set", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, layout.size)
        # the child has a descriptor, too: were it to cut the file, the parent's next look would end the parent (SIGBUS)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        self._memory = mmap.mmap(self.fd, layout.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes: Words = np.frombuffer(self._memory, dtype=np.uint8)
        self.inputs: list[Tensor] = [slot.view(self._memory) for slot in layout.inputs]
        self.outputs: list[Tensor] = [slot.view(self._memory) for slot in layout.outputs]
        self._input_bits = [slot.bits(self._memory) for slot in layout.inputs]
        self._output_bits = [slot.bits(self._memory) for slot in layout.outputs]
        self._kept: list[Tensor] = []  # what the sources' bits belong to
        self._sources: list[Words] = []
        self._shifts: list[int] = []
        self._turns: list[Turn] = []
        self._allowed: dict[tuple[int, bool], Words | None] = {}  # by input and limit; None: every bit of all elements
        slots = (*layout.inputs, *layout.outputs)
        self._guards = [(s.base - CANARY_BYTES, s.base) for s in slots]
        self._guards += [(s.base + s.bytes, s.base + s.bytes + CANARY_BYTES) for s in slots]
        self._canary: Words = np.frombuffer(secrets.token_bytes(CANARY_BYTES), dtype=np.uint8)
        for low, high in self._guards:
            self._bytes[low:high] = self._canary

    @classmethod
    def create(cls, inputs: Sequence[Tensor], outputs: Sequence[TensorSpec]) -> Self:
        """A set with a copy of `inputs` (CPU tensors) and outputs poisoned with pattern 0.

        An input keeps dtype, shape, stride, storage offset and its address modulo 64; an output's data begins
        `offset` elements after a multiple of 64. Raises ValueError for a tensor that is not on the CPU or not strided.
        """
        made = cls(*placed(inputs, outputs, "cpu"))
        made.rewrite(inputs)
        made.poison(0)
        return made

    def rewrite(self, inputs: Sequence[Tensor]) -> None:
        """Give the inputs new values; shapes, strides and dtypes must be those of `create`. Raises ValueError."""
        refuse_others(self.inputs, inputs)
        self._kept = [span(t) for t in inputs]
        self._sources = [_bits(t) for t in self._kept]
        self._shifts = [0] * len(inputs)
        self._turns = [Turn()] * len(inputs)
        self._allowed = {}
        for index in range(len(inputs)):
            self._fill(index)

    def roll(self, movable: Sequence[bool], shift: int, turns: Sequence[Turn] | None = None) -> None:
        """New values at the price of a copy: the elements of each `movable` input, rotated by `shift` in memory.

        For inputs whose elements are exchangeable (dense activations and weights); indices and masks stay. `turns`: the
        bits of the source that are flipped besides, one for each input.
        """
        for index, may in enumerate(movable):
            words = self.layout.inputs[index].words
            count = len(self._sources[index]) // words
            if may and count:
                self._shifts[index] = shift % count * words
                self._turns[index] = turns[index] if turns is not None else Turn()
                self._fill(index)

    def inputs_changed(self) -> list[int]:
        """Indices of the inputs whose bytes (gaps between strides included) are not those the parent wrote."""
        return [i for i in range(len(self.inputs)) if not self._same(i)]

    def poison(self, pattern: int) -> None:
        """Fill the outputs' storage with pattern 0 or 1."""
        if pattern not in (0, 1):
            raise ValueError(f"there are poison patterns 0 and 1, not {pattern}")
        self.pattern, self.armed = pattern, True
        for slot, bits in zip(self.layout.outputs, self._output_bits, strict=True):
            bits[:] = poison_word(slot, pattern)

    def unwritten(self) -> list[Tensor]:
        """For each output a bool mask of its shape: True where the element still holds the poison in force, bitwise.

        One pattern can be met by chance: then the element holds it in another call, poisoned otherwise, too.
        """
        return self.holding(self.pattern)

    def holding(self, pattern: int) -> list[Tensor]:
        """For each output a bool mask of its shape: True where the element equals a poison pattern, bitwise."""
        masks = []
        for slot, bits in zip(self.layout.outputs, self._output_bits, strict=True):
            step = slot.itemsize // slot.words
            shape, stride = (*slot.shape, slot.words), (*(n * slot.itemsize for n in slot.stride), step)
            own = np.lib.stride_tricks.as_strided(bits[slot.offset * slot.words :], shape, stride)
            masks.append(torch.from_numpy(np.asarray((own == poison_word(slot, pattern)).all(-1))))
        return masks

    def canaries_intact(self) -> list[str]:
        """Where canaries are damaged ("after out": something wrote past its end); empty when all are intact."""
        damaged = []
        for index, (low, high) in enumerate(self._guards):
            if not np.array_equal(self._bytes[low:high], self._canary):
                side = "before" if index < len(self.names) else "after"
                damaged.append(f"{side} {self.names[index % len(self.names)]}")
        for low, high in self._guards:
            self._bytes[low:high] = self._canary
        return damaged

    def rows(self, size: int) -> Words:
        """The outputs' part of the file as rows of `size` ≤ 4096 bytes; canaries between outputs included."""
        if not self.layout.outputs:
            return self._bytes[:0].reshape(0, size)
        first = self.layout.outputs[0].base
        last = self.layout.outputs[-1].base + self.layout.outputs[-1].bytes + CANARY_BYTES
        count = (last - first) // size
        return self._bytes[first : first + count * size].reshape(count, size)

    def rows_due(self, size: int) -> Words:
        """Indices of the `rows(size)` that hold elements which every right kernel writes."""
        found: set[int] = set()
        for begin, end in self._due():
            found.update(range(begin // size, (end - 1) // size + 1))
        return np.array(sorted(found), dtype=np.int64)

    def bytes_due(self, size: int, rows: Words) -> Words:
        """How many bytes of each of `rows` (indices into `rows(size)`) every right kernel writes."""
        first = rows * size
        total = np.zeros(len(rows), dtype=np.int64)
        for begin, end in self._due():
            total += np.maximum(0, np.minimum(first + size, end) - np.maximum(first, begin))
        return total

    def _due(self) -> list[tuple[int, int]]:
        """First and last byte + 1, from the first output's base on, of the outputs that have no gaps."""
        found = []
        for slot in self.layout.outputs:
            begin = slot.base - self.layout.outputs[0].base + slot.offset * slot.itemsize
            count = math.prod(slot.shape)
            if count and _reach(slot.shape, slot.stride) == count:
                found.append((begin, begin + count * slot.itemsize))
        return found

    def snapshot(self) -> list[Words]:
        """The outputs' storages as they are now."""
        return [bits.copy() for bits in self._output_bits]

    def differs(self, snapshot: Sequence[Words]) -> bool:
        """Whether the outputs' storages have changed since `snapshot`."""
        return not all(np.array_equal(a, b) for a, b in zip(self._output_bits, snapshot, strict=True))

    def _fill(self, index: int) -> None:
        target, shift = self._target(index), self._shifts[index]
        cut = len(target) - shift
        self._turn(index, slice(0, cut), target[shift:])
        self._turn(index, slice(cut, None), target[:shift])

    def _same(self, index: int) -> bool:
        target, shift = self._target(index), self._shifts[index]
        wanted = np.empty_like(target)
        self._turn(index, slice(None), wanted)
        cut = len(target) - shift
        return np.array_equal(target[shift:], wanted[:cut]) and np.array_equal(target[:shift], wanted[cut:])

    def _turn(self, index: int, part: slice, out: Words) -> None:
        """A part of the source with its bits turned, written to `out`."""
        source = self._sources[index][part]
        word = self._turns[index].word(self.layout.inputs[index].dtype)
        if not word:
            out[:] = source
            return
        allowed = self._may(index)
        if allowed is None:
            np.bitwise_xor(source, source.dtype.type(word), out=out)
        else:
            np.bitwise_and(allowed[part], source.dtype.type(word), out=out)
            np.bitwise_xor(out, source, out=out)

    def _may(self, index: int) -> Words | None:
        """The bits of each element of the source that may be flipped; None: all of every one."""
        key = index, self._turns[index].below_one
        if key not in self._allowed:
            source, dtype = self._sources[index], self.layout.inputs[index].dtype
            found = regular(source, dtype, key[1])
            sign, all_bits = source.dtype.type(sign_word(dtype)), ~source.dtype.type(0)
            self._allowed[key] = None if found.all() else np.where(found, all_bits, sign)
        return self._allowed[key]

    def _target(self, index: int) -> Words:
        slot = self.layout.inputs[index]
        begin = slot.offset * slot.words
        return self._input_bits[index][begin : begin + len(self._sources[index])]


def refuse_others(views: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Raises ValueError for inputs whose number, dtypes, shapes or strides aren't those of a set."""
    if len(inputs) != len(views):
        raise ValueError(f"{len(inputs)} inputs for a set of {len(views)}")
    for view, source in zip(views, inputs, strict=True):
        if (view.dtype, view.shape, view.stride()) != (source.dtype, source.shape, source.stride()):
            raise ValueError(f"an input of {source.dtype} {tuple(source.shape)} where the set has {tuple(view.shape)}")


def placed(
    inputs: Sequence[Tensor], outputs: Sequence[TensorSpec], device: Literal["cpu", "cuda"]
) -> tuple[Layout, list[str]]:
    """Where a set's tensors lie, and what they are called. Raises ValueError for a tensor elsewhere or not strided."""
    end = 0
    slots: list[Slot] = []
    for tensor in inputs:
        if tensor.device.type != device or tensor.layout is not torch.strided:
            raise ValueError(f"an input must be a strided tensor on {device}, not {tensor.layout} on {tensor.device}")
        offset = int(tensor.storage_offset())
        start = tensor.data_ptr() - offset * tensor.itemsize  # of its storage, as a kernel sees it
        name = str(tensor.dtype).removeprefix("torch.")
        slot, end = _place(name, tensor.shape, tensor.stride(), offset, start % _LINE, end)
        slots.append(slot)
    targets: list[Slot] = []
    for spec in outputs:
        slot, end = _place(spec.dtype, spec.shape, spec.stride, spec.offset, 0, end)
        targets.append(slot)
    names = [f"input {i}" for i in range(len(inputs))] + [spec.name for spec in outputs]
    return Layout(max(end, 1), tuple(slots), tuple(targets)), names


def _place(
    dtype: str, shape: Sequence[int], stride: Sequence[int], offset: int, phase: int, end: int
) -> tuple[Slot, int]:
    """A slot after `end` bytes whose storage begins `phase` bytes after a multiple of 64, and the new end."""
    shape, stride = tuple(map(int, shape)), tuple(map(int, stride))
    extent = offset + (_reach(shape, stride) if 0 not in shape else 0)
    start = -(-(end + CANARY_BYTES) // _LINE) * _LINE + phase
    slot = Slot(dtype, shape, stride, offset, start, max(extent, 1))
    return slot, start + slot.bytes + CANARY_BYTES


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def span(tensor: Tensor) -> Tensor:
    """The part of a tensor's storage that its elements lie in, gaps included, as one dimension."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    return tensor.detach().as_strided((_reach(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())


def _bits(flat: Tensor) -> Words:
    """The bits of a tensor of one dimension without gaps, as words; a view."""
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).flatten()
    made: Words = flat.view(_INTEGER[flat.itemsize]).numpy().view(_WORD[flat.itemsize])
    return made


def poison_word(slot: Slot, pattern: int) -> int:
    """The word that poisons an output."""
    dtype = torch_dtype(slot.dtype)
    dtype = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
    return _POISON.get(dtype, _POISON_INTEGER[dtype.itemsize])[pattern]
