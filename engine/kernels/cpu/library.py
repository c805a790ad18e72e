"""The compiled CPU library as Python calls it, and recorded calls that are replayed.

A decode step is some hundred calls, and the Python between them takes a tenth of its time. Most
calls are the same in each step, down to the addresses: they are recorded once, and replayed by
one call (`RecordedCalls.replay`), as a CUDA graph is on a GPU.
"""

import ctypes
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Array, Structure, c_float, c_int64, c_void_p
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from engine.errors import KernelsUnavailable

Kinds: TypeAlias = "tuple[type[c_void_p | c_int64 | c_float], ...]"
Argument: TypeAlias = object  # a number, an address, None, or a ctypes object to point to
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""How the functions are told a dtype."""
_POINTER, _NUMBER = c_void_p, c_int64
_HEAVY: dict[str, Kinds] = {  # called without the GIL
    "pd_attend": (_POINTER, _POINTER),
    "pd_delta_net": (_POINTER, _POINTER),
    "pd_mamba": (_POINTER, _POINTER),
    "pd_short_convolution": (_POINTER, _POINTER),
    "pd_multiply": (_POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "pd_multiply_int8": (_POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "pd_multiply_few_bits": (_POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "pd_noisiest": (_POINTER, _NUMBER, _POINTER, _POINTER, *[_NUMBER] * 3),
}
_LIGHT: dict[str, Kinds] = {  # too short to release the GIL
    "pd_norm": (*[_POINTER] * 3, *[_NUMBER] * 7, c_float),
    "pd_add_norm": (*[_POINTER] * 5, *[_NUMBER] * 6, c_float, c_float),
    "pd_gate": (*[_POINTER] * 3, *[_NUMBER] * 7),
    "pd_turn_and_write": (*[_POINTER] * 3, _NUMBER, *[_POINTER] * 2, *[_NUMBER] * 6),
    "pd_write": (*[_POINTER] * 3, *[_NUMBER] * 5),
}


class Library:
    """The shared library's functions; raises KernelsUnavailable if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            heavy, light = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        except OSError as error:  # damaged, or for another system's libraries
            raise KernelsUnavailable(f"cannot be opened: {error}") from error
        self._opened = heavy
        self._functions = {
            name: Function(opened, name, kinds)
            for opened, functions in ((heavy, _HEAVY), (light, _LIGHT))
            for name, kinds in functions.items()
        }

    def function(self, name: str) -> "Function":
        """A function of _HEAVY or _LIGHT."""
        return self._functions[name]

    @property
    def multiplies_bfloat16_pairs(self) -> bool:
        """Whether this CPU has instructions that multiply bfloat16 in pairs."""
        return bool(self._opened.pd_pairs())

    @property
    def multiplies_int8_quads(self) -> bool:
        """Whether this CPU has instructions that multiply int8 in groups of four."""
        return bool(self._opened.pd_quads())

    @contextmanager
    def recording(self) -> Iterator["RecordedCalls"]:
        """Record every call of this library's functions while the context is open."""
        calls = RecordedCalls(self._opened)
        for function in self._functions.values():
            function.call = partial(function.call_and_record, calls)
        try:
            yield calls
        finally:
            for function in self._functions.values():
                function.call = function.plain


class Function:
    """One C function. `call` takes numbers, addresses, and ctypes objects to point to."""

    __slots__ = ("_again", "_kinds", "call", "plain")

    def __init__(self, opened: ctypes.CDLL, name: str, kinds: Kinds) -> None:
        self.plain: Callable[..., None] = getattr(opened, name)
        self.plain.argtypes, self.plain.restype = kinds, None
        again = ctypes.cast(getattr(opened, f"{name}_again"), c_void_p)
        self._again, self._kinds, self.call = again.value or 0, kinds, self.plain

    def call_and_record(self, calls: "RecordedCalls", *args: Argument) -> None:
        """Call it, and append the call to `calls`."""
        self.plain(*args)
        calls.add(self._again, self._kinds, args)


class RecordedCalls:
    """Recorded calls in their order, and the memory that they point to."""

    def __init__(self, opened: ctypes.CDLL) -> None:
        self._words, self._kept = array("q"), list[object]()
        self._replay = opened.pd_replay
        self._replay.argtypes, self._replay.restype = (c_void_p, c_int64), None

    def add(self, again: int, kinds: Kinds, args: tuple[Argument, ...]) -> None:
        """Append a call; `again` is the address of the C function that replays it."""
        self._words.append(again)
        self._words.extend(map(self._word, kinds, args))

    def keep(self, *things: object) -> None:
        """Keep `things` alive as long as these calls, which point to them."""
        self._kept += things

    def replay(self) -> None:
        """Repeat all calls, on the current contents of their memory."""
        self._replay(self._words.buffer_info()[0], len(self._words))

    def _word(self, kind: type, arg: Argument) -> int:
        """An argument in the form that pd_replay takes: 64 bits."""
        if kind is c_float:
            (bits,) = struct.unpack("<I", struct.pack("<f", arg))
            return int(bits)
        if arg is None or isinstance(arg, int):
            return arg or 0
        given = getattr(arg, "_obj", arg)  # to ctypes.byref
        assert isinstance(given, Structure | Array), "what ctypes points to"
        self.keep(given)
        return ctypes.addressof(given)
