"""The inputs and outputs of one call in device memory, shared with a child by CUDA IPC. The doors of buffers.BufferSet.

The parent fills, poisons and compares with its own kernels, in its own context; the sources of the inputs and all
expected values lie in other allocations, which no child can open.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autokernel.judge.buffers import CANARY_BYTES, Layout, Slot, placed, poison_word, refuse_others, torch_dtype
from autokernel.judge.buffers import span as span_of
from autokernel.judge.cuda_memory import Allocation
from autokernel.judge.turns import Turn, regular, sign_word

if TYPE_CHECKING:
    from autokernel.records import TensorSpec

_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PIECE = 1 << 14  # bytes of a sample
_MOST_UNWRITTEN = 1 / 64  # of an output's elements that may look like its poison


class CudaSet:
    """See `BufferSet`: the same attributes and methods, over device memory of this process.

    Not covered: reads beyond the buffers. A child that reads beside them meets canaries, then an illegal access.
    """

    fd = None

    def __init__(self, layout: Layout, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.pattern = 0
        self.armed = False
        self._allocation = Allocation(layout.size)
        self.layout = replace(layout, device="cuda", handle=self._allocation.handle())
        self._bytes = self._allocation.bytes()
        self.inputs = [device_view(self._bytes, slot) for slot in layout.inputs]
        self.outputs = [device_view(self._bytes, slot) for slot in layout.outputs]
        self._input_words = [_words(self._bytes, slot) for slot in layout.inputs]
        self._output_words = [_words(self._bytes, slot) for slot in layout.outputs]
        self._sources: list[Tensor] = []
        self._shifts: list[int] = []
        self._turns: list[Turn] = []
        self._allowed: dict[tuple[int, bool], Tensor | None] = {}  # by input and limit; None: every bit of all elements
        slots = (*layout.inputs, *layout.outputs)
        guards = [(s.base - CANARY_BYTES, s.base) for s in slots]
        guards += [(s.base + s.bytes, s.base + s.bytes + CANARY_BYTES) for s in slots]
        canary = torch.frombuffer(bytearray(secrets.token_bytes(CANARY_BYTES)), dtype=torch.uint8)
        self._canary = canary.to(self._bytes.device)
        self._guards = [self._bytes[low:high] for low, high in guards]
        self._renew_canaries()

    @classmethod
    def create(cls, inputs: Sequence[Tensor], outputs: Sequence[TensorSpec]) -> CudaSet:
        """A set with a copy of `inputs` (CUDA tensors) and outputs poisoned with pattern 0. Raises ValueError."""
        made = cls(*placed(inputs, outputs, "cuda"))
        made.rewrite(inputs)
        made.poison(0)
        return made

    # --- inputs -------------------------------------------------------------------------------------------------------

    def rewrite(self, inputs: Sequence[Tensor]) -> None:
        """New values, of the shapes, strides and dtypes of `create`. The tensors are kept, not copied."""
        refuse_others(self.inputs, inputs)
        self._sources = [_bits(span_of(t)) for t in inputs]
        self._shifts = [0] * len(inputs)
        self._turns = [Turn()] * len(inputs)
        self._allowed = {}
        for index in range(len(inputs)):
            self._fill(index)

    def roll(self, movable: Sequence[bool], shift: int, turns: Sequence[Turn] | None = None) -> None:
        """The elements of each `movable` input rotated by `shift` in memory, bits of theirs flipped (`turns`)."""
        for index, may in enumerate(movable):
            words = self.layout.inputs[index].words
            count = len(self._sources[index]) // words
            if may and count:
                self._shifts[index] = shift % count * words
                self._turns[index] = turns[index] if turns is not None else Turn()
                self._fill(index)

    def inputs_changed(self) -> list[int]:
        """Indices of the inputs whose bytes are not those the parent wrote."""
        same = [self._same(index) for index in range(len(self.inputs))]
        return [i for i, equal in enumerate(_booleans(same)) if not equal]

    def _fill(self, index: int) -> None:
        target, (first, second) = self._target(index), self._pieces(index)
        target[: len(first)].copy_(first)
        target[len(first) :].copy_(second)

    def _same(self, index: int) -> Tensor:
        target, (first, second) = self._target(index), self._pieces(index)
        return (target[: len(first)] == first).all() & (target[len(first) :] == second).all()

    def _pieces(self, index: int) -> tuple[Tensor, Tensor]:
        """What must be in memory: the end of the source, then its beginning, bits turned where they are."""
        source, shift = self._sources[index], self._shifts[index]
        cut = len(source) - shift
        pieces = source[cut:], source[:cut]
        slot = self.layout.inputs[index]
        if word := self._turns[index].word(slot.dtype):
            turn, allowed = _signed(word, slot), self._may(index)
            if allowed is None:
                return pieces[0] ^ turn, pieces[1] ^ turn
            return pieces[0] ^ (allowed[cut:] & turn), pieces[1] ^ (allowed[:cut] & turn)
        return pieces

    def _may(self, index: int) -> Tensor | None:
        """The bits of each element of the source that may be flipped; None: all of every one."""
        key = index, self._turns[index].below_one
        if key not in self._allowed:
            source, slot = self._sources[index], self.layout.inputs[index]
            found = regular(source, slot.dtype, key[1])
            sign = _signed(sign_word(slot.dtype), slot)
            every = bool(found.all())
            self._allowed[key] = None if every else torch.where(found, -1, sign).to(source.dtype)
        return self._allowed[key]

    def _target(self, index: int) -> Tensor:
        slot = self.layout.inputs[index]
        begin = slot.offset * slot.words
        return self._input_words[index][begin : begin + len(self._sources[index])]

    # --- outputs ------------------------------------------------------------------------------------------------------

    def poison(self, pattern: int) -> None:
        """Fill the outputs' storage with pattern 0 or 1."""
        if pattern not in (0, 1):
            raise ValueError(f"there are poison patterns 0 and 1, not {pattern}")
        self.pattern, self.armed = pattern, True
        for slot, words in zip(self.layout.outputs, self._output_words, strict=True):
            words.fill_(_signed(poison_word(slot, pattern), slot))

    def intact(self) -> bool:
        """Whether every byte of the outputs' storage still holds the poison in force."""
        return all_intact([self])

    def _poisoned(self) -> list[Tensor]:
        return [
            (words == _signed(poison_word(slot, self.pattern), slot)).all()
            for slot, words in zip(self.layout.outputs, self._output_words, strict=True)
        ]

    def unwritten(self) -> list[Tensor]:
        """For each output a bool mask of its shape: True where the element still holds the poison in force."""
        return self.holding(self.pattern)

    def holding(self, pattern: int) -> list[Tensor]:
        """For each output a bool mask of its shape: True where the element equals a poison pattern, bitwise."""
        masks = []
        for slot, words in zip(self.layout.outputs, self._output_words, strict=True):
            shape, stride = (*slot.shape, slot.words), (*(n * slot.words for n in slot.stride), 1)
            own = words.as_strided(shape, stride, words.storage_offset() + slot.offset * slot.words)
            masks.append((own == _signed(poison_word(slot, pattern), slot)).all(-1))
        return masks

    def untouched(self) -> int:
        """How many outputs hold their poison in more elements than values could look like it by chance."""
        count = [mask.double().mean() > _MOST_UNWRITTEN for mask in self.unwritten() if mask.numel()]
        return sum(_booleans(count))

    def snapshot(self) -> list[Tensor]:
        """The outputs' storages as they are now."""
        return [words.clone() for words in self._output_words]

    def differs(self, snapshot: Sequence[Tensor]) -> bool:
        """Whether the outputs' storages have changed since `snapshot`."""
        found = [(a == b).all() for a, b in zip(self._output_words, snapshot, strict=True)]
        return not all(_booleans(found))

    def canaries_intact(self) -> list[str]:
        """Where canaries are damaged; they are renewed."""
        whole = _booleans([(guard == self._canary).all() for guard in self._guards])
        damaged = []
        for index, good in enumerate(whole):
            if not good:
                side = "before" if index < len(self.names) else "after"
                damaged.append(f"{side} {self.names[index % len(self.names)]}")
        if damaged:
            self._renew_canaries()
        return damaged

    def _renew_canaries(self) -> None:
        for guard in self._guards:
            guard.copy_(self._canary)


def all_intact(sets: Sequence[CudaSet]) -> bool:
    """Whether every output of these sets still holds its poison, to the byte; the device is waited for once."""
    return all(_booleans([found for one in sets for found in one._poisoned()]))


def device_view(memory: Tensor, slot: Slot) -> Tensor:
    """A slot of a set as a tensor over the shared memory."""
    dtype = torch_dtype(slot.dtype)
    flat = memory[slot.base : slot.base + slot.bytes].view(dtype)
    return flat.as_strided(slot.shape, slot.stride, flat.storage_offset() + slot.offset)


class CudaSample:
    """Two pieces of a set's outputs, read by the parent at the moment the child says "done": the end and a random one.

    Plain copies, which the device's copy engines make: a kernel of the parent's would have to wait for its turn.
    """

    def __init__(self, buffers: CudaSet) -> None:
        self.buffers = buffers
        last = buffers.layout.outputs[-1]
        chosen = secrets.choice(buffers.layout.outputs)
        size = min(_PIECE, last.bytes, chosen.bytes)
        begin = chosen.base + secrets.randbelow(chosen.bytes - size + 1)
        places = (last.base + last.bytes - size, begin)
        self.pieces = [buffers._bytes[place : place + size] for place in places]
        self.at_done = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in places]

    def read(self) -> None:
        for piece, kept in zip(self.pieces, self.at_done, strict=True):
            kept.copy_(piece, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    def late(self) -> bool:
        """Whether the pieces have changed since `read`."""
        return not all(torch.equal(piece.cpu(), kept) for piece, kept in zip(self.pieces, self.at_done, strict=True))

    def untouched(self) -> int:
        """How many of the set's outputs still look poisoned; 0 for a set that was not freshly poisoned."""
        return self.buffers.untouched() if self.buffers.armed else 0


def _words(memory: Tensor, slot: Slot) -> Tensor:
    return memory[slot.base : slot.base + slot.bytes].view(_WORD[slot.itemsize // slot.words])


def _bits(flat: Tensor) -> Tensor:
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).flatten()
    return flat.view(_WORD[flat.element_size()])


def _signed(word: int, slot: Slot) -> int:
    """A poison word as torch's integers of that size hold it."""
    bits = 8 * (slot.itemsize // slot.words)
    return word if bits == 8 or word < 1 << (bits - 1) else word - (1 << bits)


def _booleans(found: Sequence[Tensor]) -> list[bool]:
    """Device booleans, read with one copy."""
    return [bool(b) for b in torch.stack(list(found)).tolist()] if found else []
