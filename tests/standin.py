"""A device that is not there: tensors on it are real ones of the CPU that may not meet tensors left on the CPU.

torch's fake tensors cannot stand in: without CUDA, autograd on a fake ``cuda`` tensor ends the process, and a fake
tensor has no value to decide by. Here every value is real, so a run on the stand-in must also give the CPU's bits.
``meta`` is the name under which code sees this device. Only what Python calls is watched: gradients of our own
autograd functions, which run inside ``backward``, are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")

_READS: set[Any] = {Tensor.numpy, Tensor.__array__}
_BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_DEVICE = Tensor.device.__get__
_MARK = "_is_there"


class Strayed(AssertionError):
    """A tensor was left on the CPU."""


class _Watch(TorchFunctionMode):
    """Sees every call of a torch function; tensors on the device carry a mark."""

    def __init__(self) -> None:
        super().__init__()
        self._backward = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        there = any(map(is_there, tensors))
        if func == _DEVICE:
            return DEVICE if there else torch.device("cpu")
        if func in (Tensor.to, Tensor.cpu):
            return _moved(func, *args, **kwargs)
        if func in _READS and there:
            raise Strayed(f"{func.__name__} of a tensor on the device")
        here = [tuple(value.shape) for value in tensors if not is_there(value) and value.dim() > 0]
        if there and here and not self._backward:
            raise Strayed(f"{getattr(func, '__name__', func)} of tensors on the device and, left on the CPU, {here}")
        if kwargs.get("device") == DEVICE:
            there, kwargs = True, {**kwargs, "device": torch.device("cpu")}
        self._backward, before = self._backward or func in _BACKWARD, self._backward
        try:
            result = func(*args, **kwargs)
        finally:
            self._backward = before
        return tree_map(_marked, result) if there else result


def is_there(tensor: Tensor) -> bool:
    """Whether a tensor is on the stand-in."""
    return getattr(tensor, _MARK, False)


def _moved(func: Any, tensor: Tensor, *rest: Any, **options: Any) -> Tensor:
    """``to`` and ``cpu``: a device among the arguments decides, else the tensor stays where it is."""
    given = (*rest, *options.values())
    wanted = [torch.device(value) for value in given if isinstance(value, torch.device | str)]
    goes = is_there(tensor) if func is Tensor.to and not wanted else DEVICE in wanted
    kept: list[Any] = [value for value in given if isinstance(value, torch.dtype | bool)]
    result = tensor.to(*kept) if kept else tensor
    if goes == is_there(tensor):
        return _marked(result) if goes else result
    copy = result.clone() if result is tensor else result
    return _marked(copy) if goes else copy


def _marked(value: Any) -> Any:
    if isinstance(value, Tensor):
        setattr(value, _MARK, True)
    return value


@contextmanager
def stand_in() -> Iterator[torch.device]:
    """Inside, tensors can be moved to the device that this gives, and made there."""
    with _Watch():
        yield DEVICE
