"""Edge rows that are not computed until a function needs them.

`x[edge_index[0]]` returns a `Deferred`, which stands for one row per edge. A layer that
multiplies the rows by a factor per edge and adds them up at the destinations only needs
the sums, which a kernel computes from the rows of `x`. Any other function computes the
rows first, so results are those of plain torch in every case.
"""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

if TYPE_CHECKING:
    from lazyedges.edges import EdgeSet

_FACTS = {
    "size", "shape", "dim", "ndim", "ndimension", "numel", "nelement", "__len__", "dtype", "device", "layout",
    "is_sparse", "is_sparse_csr", "is_cuda", "is_cpu", "is_mps", "is_meta", "is_nested", "is_quantized",
    "is_floating_point", "is_complex", "requires_grad", "is_leaf", "grad_fn", "get_device", "element_size",
    "is_contiguous", "__hash__",
}  # fmt: skip
ADD = {"add", "__add__", "__radd__"}
SUBTRACT = {"sub", "__sub__", "subtract"}
MULTIPLY = {"mul", "__mul__", "__rmul__", "multiply"}
DIVIDE = {"div", "__truediv__", "divide", "true_divide"}
_UPDATES = {"__setitem__", "__set__", *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow"))}


class Lazy:
    """A tensor that is computed on first use, in the grad mode of its creation."""

    def __init__(self, compute: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Stores the computation.

        Args:
            compute: Returns the tensor.
            shape: Shape of a row, without the number of rows.
            dtype: Type of the numbers.
        """
        self.shape, self.dtype, self._compute = tuple(shape), dtype, compute
        self.source: Tensor | None = None  # the tensor whose rows these are, to recognise it
        self.call: Call | None = None  # the function that computes the tensor, until then
        self.plain: Tensor | None = None  # the plain tensor in whose place a deferred one stands
        self._value: Tensor | None = None
        self.grad = torch.is_grad_enabled()

    @property
    def computed(self) -> bool:
        """Whether the tensor has been computed."""
        return self._value is not None

    def value(self) -> Tensor:
        """Returns the tensor."""
        if self._value is None:
            with torch.set_grad_enabled(self.grad):
                self._value = self._compute()
            del self._compute  # frees its inputs
            self.call = None
        return self._value


@dataclass(frozen=True, slots=True)
class Call:
    """A torch function and its arguments."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def on(self, rows: Callable[[Deferred], Tensor]) -> Any:
        """Calls the function with `rows(argument)` in place of each deferred one."""
        args, kwargs = replaced((self.args, dict(self.kwargs)), rows, Deferred)
        return self.func(*args, **kwargs)


def replaced(value: Any, replacement: Callable[[Any], Tensor], kind: type[Tensor]) -> Any:
    """Replaces tensors of a kind within nested arguments."""
    if isinstance(value, kind):
        return replacement(value)
    if isinstance(value, dict):
        return {name: replaced(item, replacement, kind) for name, item in value.items()}
    return type(value)(replaced(item, replacement, kind) for item in value) if type(value) in (list, tuple) else value


class Meaning(ABC):
    """What a deferred tensor stands for, in terms of rows of nodes."""

    @abstractmethod
    def step(self, call: Call, tensor: Deferred) -> Any:
        """Returns the function's result without edge rows, or NotImplemented.

        Args:
            call: The function. One of its arguments is `tensor`.
            tensor: The deferred tensor with this meaning.
        """

    def sum(self, tensor: Deferred, edges: EdgeSet) -> Tensor | None:  # [num_dst, ...]
        """Returns the sum by destination, or None if unsupported.

        Args:
            tensor: The deferred tensor with this meaning.
            edges: The edges at whose destinations the rows are added up.
        """
        return None

    def drop(self, tensor: Deferred, ids: Tensor, p: float, key: int) -> Deferred | None:
        """Defers dropout of edge values, or returns None.

        Args:
            tensor: The deferred tensor with this meaning.
            ids: [num_edges] ids of the edges.
            p: Dropout probability.
            key: Random key.
        """
        return None

    def at_destinations(self, name: str, tensor: Deferred, edges: EdgeSet) -> Deferred | None:
        """Defers a function that reads destinations, "amax" or "spread".

        Args:
            name: The function: the maximum by destination, or the destinations' values
                by edge.
            tensor: The deferred tensor with this meaning.
            edges: The edges with these destinations.
        """
        return None


class Origin:
    """A pass's deferred tensors, and the functions that computed rows after all."""

    def __init__(self, caller: Callable[[], str]) -> None:
        """Stores `caller`, which returns the calling layer's name."""
        self.fallbacks: Counter[str] = Counter()  # by layer and function, "GATv2Conv.mul"
        self._caller = caller
        self._live: list[weakref.ref[Deferred]] = []

    def add(self, tensor: Deferred) -> None:
        """Records a new deferred tensor."""
        self._live.append(weakref.ref(tensor))

    def count(self, name: str) -> None:
        """Counts a function that computed rows."""
        self.fallbacks[f"{self._caller()}.{name.strip('_')}"] += 1

    def before_write(self, target: Tensor | None) -> None:
        """Computes the rows that a change of `target` in place would alter.

        Args:
            target: The tensor. If None, unknown, computes all rows.
        """
        self._live = [ref for ref in self._live if ref() is not None]
        for tensor in [ref() for ref in self._live]:
            if tensor is not None and (target is None or tensor.reads(target)):
                tensor.settle()


class Deferred(Tensor):
    """[num_edges, ...] rows, or a value per destination computed from them.

    Autograd treats it as the result of a function, so that functions which do not ask
    `__torch_function__`, such as a user's `autograd.Function`, keep the gradient.
    """

    origin: Origin
    lazy: Lazy
    operands: tuple[Tensor, ...]  # plain tensors
    constant: bool  # whether it was created without gradient
    _meaning: Meaning | None

    @property
    def meaning(self) -> Meaning | None:
        """What the tensor stands for. If None, a plain tensor, with `value()`."""
        return None if self._is_result else self._meaning

    @meaning.setter
    def meaning(self, meaning: Meaning | None) -> None:
        self._meaning = meaning

    @property
    def _is_result(self) -> bool:
        """Whether a user's function with a gradient of its own returned the tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.constant and self.requires_grad

    def value(self) -> Tensor:
        """Computes the tensor."""
        value = self.lazy.value()
        if not self._is_result:
            return value
        result: Tensor = _Show.apply(self, value)
        return result

    @property
    def computed(self) -> bool:
        """Whether the tensor has been computed."""
        return self.lazy.computed

    def settle(self) -> None:
        """Computes the tensor, and makes it a plain one."""
        self.value()
        self.meaning = None

    def become(self, tensor: Tensor) -> None:
        """Makes this tensor, changed in place, stand for another one."""
        if isinstance(tensor, Deferred):
            self.lazy, self.meaning, self.operands = tensor.lazy, tensor.meaning, tensor.operands
            return
        self.lazy, self.meaning = Lazy(lambda: tensor, tuple(tensor.shape[1:]), tensor.dtype), None
        self.lazy.plain = tensor
        self.operands = (tensor,)  # what later functions of this tensor read
        self.value()
        if tensor.requires_grad:  # for functions that read this tensor without asking it
            with torch._C.DisableTorchFunctionSubclass():
                self.requires_grad_(True)
                backward = lambda grad: torch.autograd.backward(tensor, grad, retain_graph=True)  # noqa: E731
                self.register_hook(backward)  # type: ignore[no-untyped-call]
            self.constant = False

    @classmethod
    def plainly(cls, call: Call) -> Any:
        """Calls a function on computed rows."""
        tensors = deferred_in((call.args, dict(call.kwargs)))
        count(call, tensors)
        target = written(call.func, call.args, call.kwargs)
        if target is not None:
            old_value = target.value() if isinstance(target, Deferred) and target.stands_for_plain else None
            for tensor in tensors:
                tensor.origin.before_write(old_value)
        result = call.on(Deferred.value)
        return target if isinstance(target, Deferred) and result is target.value() else result

    @property
    def stands_for_plain(self) -> bool:
        """Whether it has become a plain tensor, which results list as an operand."""
        return self.meaning is None and self.lazy.plain is not None

    def reads(self, target: Tensor) -> bool:
        """Whether a change of `target` in place would change the tensor."""
        if self.meaning is None and self.computed:
            return False
        return any(_memory(operand) == _memory(target) for operand in self.operands)

    def result(self, meaning: Meaning, call: Call, shape: tuple[int, ...], dtype: torch.dtype) -> Deferred:
        """Defers a function of this tensor and others.

        Args:
            meaning: What the result stands for.
            call: The function.
            shape: Shape of the result.
            dtype: Type of the result.
        """
        operands: dict[int, Tensor] = {}
        tensors = tensors_in((call.args, dict(call.kwargs)))
        for value in tensors:
            items = value.operands if isinstance(value, Deferred) else (value,)
            operands |= {id(item): item for item in items}
        differs = call.name != "detach" and any(value.requires_grad for value in tensors)
        lazy = Lazy(lambda: call.on(Deferred.value), tuple(shape[1:]), dtype)
        lazy.call = call
        with torch.set_grad_enabled(differs and torch.is_grad_enabled()):
            return deferred(self, meaning, lazy, list(operands.values()), shape)

    def derived(self, meaning: Meaning, compute: Callable[[], Tensor], shape: tuple[int, ...]) -> Deferred:
        """Defers a function of this tensor alone.

        Args:
            meaning: What the result stands for.
            compute: Returns the result.
            shape: Shape of the result.
        """
        lazy = Lazy(compute, shape[1:], self.dtype)
        with torch.set_grad_enabled(self.requires_grad and torch.is_grad_enabled()):
            return deferred(self, meaning, lazy, list(self.operands), shape)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(kind is not Deferred for kind in types):
            return NotImplemented  # such as the destinations of edges, which know the sums
        kwargs = kwargs or {}
        name = name_of(func)
        if name in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        call = Call(func, name, args, kwargs)
        in_place = written(func, args, kwargs) is not None
        for tensor in deferred_in((args, kwargs)):
            if tensor.meaning is not None and not in_place:
                result = _facts_of(call, tensor)
                result = tensor.meaning.step(call, tensor) if result is NotImplemented else result
                if result is not NotImplemented:
                    return result
        return cls.plainly(call)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = replaced((args, dict(kwargs or {})), lambda tensor: tensor.value().detach(), Deferred)
        return func(*args, **kwargs)


def deferred(
    like: Deferred | Origin, meaning: Meaning, lazy: Lazy, operands: list[Tensor], shape: Sequence[int]
) -> Deferred:
    """Creates a deferred tensor.

    Args:
        like: A deferred tensor of the same pass, or the pass's origin.
        meaning: What it stands for.
        lazy: Computes it.
        operands: The plain tensors from which it is computed.
        shape: Its shape.
    """
    origin = like if isinstance(like, Origin) else like.origin
    tensor: Deferred = _Defer.apply(lazy, tuple(shape), *operands)
    tensor.meaning, tensor.origin, tensor.lazy, tensor.operands = meaning, origin, lazy, tuple(operands)
    tensor.constant = not tensor.requires_grad
    origin.add(tensor)
    return tensor


class _Defer(Function):
    """Connects a deferred tensor to its operands, for functions that bypass torch's."""

    @staticmethod
    def forward(ctx: Any, lazy: Lazy, shape: tuple[int, ...], *operands: Tensor) -> Tensor:
        ctx.lazy, ctx.operands = lazy, operands
        make = Tensor._make_wrapper_subclass
        tensor: Tensor = make(Deferred, shape, dtype=lazy.dtype, device=operands[0].device)
        return tensor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [operand for operand in ctx.operands if operand.requires_grad]
        keys = {"retain_graph": True, "create_graph": torch.is_grad_enabled(), "allow_unused": True}
        gradients = iter(torch.autograd.grad(ctx.lazy.value(), inputs, grad, **keys))
        return (None, None, *(next(gradients) if operand.requires_grad else None for operand in ctx.operands))


class _Show(Function):
    """Returns the values of a deferred tensor, with its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Meaning):
    """A new tensor of zeros or ones, created by a deferred tensor."""

    number: int

    def step(self, call: Call, tensor: Deferred) -> Any:
        return NotImplemented

    def sum(self, tensor: Deferred, edges: EdgeSet) -> Tensor | None:
        degree = edges.in_degree.to(tensor.dtype) * self.number
        return degree.view(-1, *[1] * (tensor.dim() - 1)).expand(-1, *tensor.shape[1:]).clone()


def _facts_of(call: Call, tensor: Deferred) -> Any:
    """Creates tensors like a deferred one, and passes dropout that does nothing."""
    if call.name == "dropout" and (not call.kwargs.get("training", True) or call.kwargs.get("p", 0.5) == 0):
        return tensor
    makers = {"new_zeros": 0, "new_ones": 1}
    if call.name in makers:
        number, device = makers[call.name], call.kwargs.get("device", tensor.device)
        first = call.args[1:] or (call.kwargs.get("size"),)
        shape = tuple(first[0]) if isinstance(first[0], list | tuple) else tuple(first)
        dtype = call.kwargs.get("dtype") or tensor.dtype
        if call.kwargs.keys() <= {"size", "dtype", "device"} and shape and device == tensor.device:
            fresh = torch.full if number else (lambda shape, _, **keys: torch.zeros(shape, **keys))
            lazy = Lazy(lambda: fresh(shape, number, dtype=dtype, device=device), shape[1:], dtype)
            with torch.no_grad():
                return deferred(tensor, Constant(number), lazy, list(tensor.operands), shape)
        return torch.full(shape, number, dtype=dtype, device=device)
    if call.name == "new_empty":
        return torch.empty(*call.args[1:], dtype=tensor.dtype, device=tensor.device, **call.kwargs)
    return NotImplemented


def count(call: Call, tensors: list[Deferred]) -> None:
    """Counts a function that computes rows, unless it reads a tensor with as many."""
    fresh = [tensor for tensor in tensors if not tensor.computed and tensor.dim() > 1]
    fresh = [tensor for tensor in fresh if not isinstance(tensor.meaning, Constant)]
    values = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
    plain = [value for value in values if not isinstance(value, Deferred) and value.is_floating_point()]
    if fresh and all(value.shape != fresh[0].shape for value in plain):
        fresh[0].origin.count(call.name)


def meaning_of(value: Any) -> Meaning | None:
    """Returns what a tensor stands for, or None if it is plain."""
    return value.meaning if isinstance(value, Deferred) else None


def value_of(value: Any) -> Any:
    """Computes a deferred tensor. Returns other values."""
    return value.value() if isinstance(value, Deferred) else value


def computed(value: Tensor, name: str) -> Tensor:
    """Computes a deferred tensor for a function, which is counted by its name."""
    if isinstance(value, Deferred) and value.meaning is not None and not value.computed:
        value.origin.count(name)
    result: Tensor = value_of(value)
    return result


def tensors_in(value: Any) -> list[Tensor]:
    """Lists the tensors within nested arguments."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [inner for item in value for inner in tensors_in(item)] if type(value) in (list, tuple) else []


def deferred_in(value: Any) -> list[Deferred]:
    """Lists the deferred tensors within nested arguments."""
    return [tensor for tensor in tensors_in(value) if isinstance(tensor, Deferred)]


def name_of(func: Any) -> str:
    """Returns the name of a torch function or tensor property."""
    name: str = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
    return name


def written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Returns the tensor that a function changes in place, if any."""
    place = _place_of_inplace(func)
    if place is None:
        out = kwargs.get("out")
        return out if isinstance(out, Tensor) else None
    if place >= 0 and not (kwargs.get("inplace") or (len(args) > place and args[place] is True)):
        return None
    target = args[0] if args else None
    return target if isinstance(target, Tensor) else None


@cache
def _place_of_inplace(func: Any) -> int | None:
    """Returns the position of the parameter `inplace`. -1: always in place."""
    name = name_of(func)
    if name in _UPDATES or (name.endswith("_") and not name.endswith("__")):
        return -1
    in_functional = getattr(F, name, None) is func
    if not in_functional:
        return None
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def version_of(tensor: Tensor) -> int:
    """Returns torch's counter of changes in place, 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def _memory(tensor: Tensor) -> int:
    value = tensor.value() if isinstance(tensor, Deferred) and tensor.computed else tensor
    return 0 if isinstance(value, Deferred) else value.untyped_storage().data_ptr()
