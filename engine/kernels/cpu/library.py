"""The compiled library as Python calls it, and calls that are remembered to be made again.

A step of decode is some hundred calls, and what stands between them in Python takes as long as
a tenth of it. Most of them are the same in each step, down to the addresses: remembered once,
they are made again by one call (`Calls.replay`).
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

from engine.errors import NoKernels

Kinds: TypeAlias = "tuple[type[c_void_p | c_int64 | c_float], ...]"
Argument: TypeAlias = object  # a number, an address, None, or what ctypes points to
_POINTER, _NUMBER = c_void_p, c_int64
_HEAVY: dict[str, Kinds] = {  # Python goes on meanwhile
    "pd_attend": (_POINTER, _POINTER),
    "pd_multiply": (_POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "pd_multiply_int8": (_POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "pd_noisiest": (_POINTER, _NUMBER, _POINTER, _POINTER, *[_NUMBER] * 3),
}
_LIGHT: dict[str, Kinds] = {  # over before another thread could have done anything
    "pd_norm": (*[_POINTER] * 3, *[_NUMBER] * 7, c_float),
    "pd_add_norm": (*[_POINTER] * 5, *[_NUMBER] * 6, c_float, c_float),
    "pd_gate": (_POINTER, _POINTER, *[_NUMBER] * 5),
    "pd_turn_and_write": (*[_POINTER] * 3, _NUMBER, *[_POINTER] * 2, *[_NUMBER] * 5),
    "pd_write": (*[_POINTER] * 3, *[_NUMBER] * 5),
}


class Library:
    """Opened once; raises NoKernels."""

    def __init__(self, path: Path) -> None:
        try:
            heavy, light = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        except OSError as error:  # spoiled, or for another system's libraries
            raise NoKernels(f"cannot be opened: {error}") from error
        self._opened = heavy
        self._functions = {
            name: Function(opened, name, kinds)
            for opened, functions in ((heavy, _HEAVY), (light, _LIGHT))
            for name, kinds in functions.items()
        }

    def function(self, name: str) -> "Function":
        """One of those above."""
        return self._functions[name]

    @property
    def pairs(self) -> bool:
        """Whether bfloat16 is multiplied in pairs here."""
        return bool(self._opened.pd_pairs())

    @property
    def quads(self) -> bool:
        """Whether numbers of 8 bits are multiplied in fours here."""
        return bool(self._opened.pd_quads())

    @contextmanager
    def remembering(self) -> Iterator["Calls"]:
        """What is called meanwhile, by whomever."""
        calls = Calls(self._opened)
        for function in self._functions.values():
            function.call = partial(function.remembered, calls)
        try:
            yield calls
        finally:
            for function in self._functions.values():
                function.call = function.plain


class Function:
    """One C function. `call` takes numbers, addresses, and what ctypes points to."""

    __slots__ = ("_again", "_kinds", "call", "plain")

    def __init__(self, opened: ctypes.CDLL, name: str, kinds: Kinds) -> None:
        self.plain: Callable[..., None] = getattr(opened, name)
        self.plain.argtypes, self.plain.restype = kinds, None
        again = ctypes.cast(getattr(opened, f"{name}_again"), c_void_p)
        self._again, self._kinds, self.call = again.value or 0, kinds, self.plain

    def remembered(self, calls: "Calls", *args: Argument) -> None:
        """Call it, and have it remembered."""
        self.plain(*args)
        calls.add(self._again, self._kinds, args)


class Calls:
    """Remembered in their order, with what they point to."""

    def __init__(self, opened: ctypes.CDLL) -> None:
        self._words, self._kept = array("q"), list[object]()
        self._replay = opened.pd_replay
        self._replay.argtypes, self._replay.restype = (c_void_p, c_int64), None

    def add(self, again: int, kinds: Kinds, args: tuple[Argument, ...]) -> None:
        """One more, by the address of who makes it again."""
        self._words.append(again)
        self._words.extend(map(self._word, kinds, args))

    def keep(self, *things: object) -> None:
        """As long as these calls; they point to them."""
        self._kept += things

    def replay(self) -> None:
        """All of them, over what is now where they read."""
        self._replay(self._words.buffer_info()[0], len(self._words))

    def _word(self, kind: type, arg: Argument) -> int:
        """As pd_replay takes arguments: 64 bits each."""
        if kind is c_float:
            (bits,) = struct.unpack("<I", struct.pack("<f", arg))
            return int(bits)
        if arg is None or isinstance(arg, int):
            return arg or 0
        given = getattr(arg, "_obj", arg)  # to ctypes.byref
        assert isinstance(given, Structure | Array), "what ctypes points to"
        self.keep(given)
        return ctypes.addressof(given)
