"""Worker threads that compute on one core each, and change nothing for the rest of the process.

`torch.set_num_threads` would also tell every thread that starts later. OpenMP and MKL keep a number of threads for each
thread that calls them; it is set there directly, in the workers alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


@cache
def _setters() -> tuple[Callable[[int], object], ...]:
    """Return the functions that set the calling thread's own number of threads; none where torch brings no OpenMP."""
    library = ctypes.CDLL(torch._C.__file__)
    # MKL's name in C; in small letters it is that of Fortran, which takes a pointer.
    found = [getattr(library, name, None) for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")]
    return tuple(one for one in found if one is not None) if found[0] is not None else ()


def can_split() -> bool:
    """Return whether workers can be given one core each; else torch divides the work of a product itself."""
    return bool(_setters())


def _settle() -> None:
    torch.get_num_threads()  # torch sets the number of a thread when it is first asked, and never again
    for set_threads in _setters():
        set_threads(1)


class Workers:
    """Threads that stay, since oneDNN prepares its products in every new one; a forked process has none of them."""

    def __init__(self) -> None:
        """Start none yet."""
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads of this process."""
        kept = self._pool
        if kept is None or kept[0] != os.getpid():
            kept = self._pool = os.getpid(), ThreadPoolExecutor(initializer=_settle)
        return kept[1]
