"""The model of a run, from the configuration or from Python."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gnnkit.comm import Communicator
from gnnkit.config.settings import Choice, Settings
from gnnkit.errors import UserError
from gnnkit.graph.schema import Schema
from gnnkit.model.base import Program, as_trained, is_iterated
from gnnkit.model.exactness import calls, check_parameters
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.unchanged import EdgeIndexModel, adapted, reads_types
from gnnkit.sampler import Sampler
from gnnkit.strategy import ExecutionStrategy, JoinedLayers, SparseRows
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.task.base import HEAD
from gnnkit.utils.ranges import shown

ModelFactory = Callable[[int, int], nn.Module]  # (in_features, num_classes)
PythonModel = nn.Module | ModelFactory | Program | None  # from Python, replacing the configured model


_WRAPPERS = {
    "OptimizedModule": "torch.compile",
    "DataParallel": "DataParallel",
    "DistributedDataParallel": "DistributedDataParallel",
    "ScriptModule": "torch.jit",
}  # torch's wrapper classes, and how they are made

_building = threading.Lock()  # torch has one random generator for all threads


@dataclass(frozen=True, slots=True)
class Widths:
    """The input and output sizes of a model."""

    in_features: int
    num_classes: int  # output width
    edge_width: int  # 0 without edge features
    num_relations: int = 1  # edge types
    num_node_types: int = 1
    schema: Schema | None = None  # the data's types, or None before they are read
    num_targets: int = 0  # outputs of a task's head per labelled edge, or 0 if rows are nodes


# The sizes that constructors take.
WIDTHS = ("in_features", "num_classes", "edge_width", "num_relations", "num_node_types")
_EMBEDS = "embeds"  # constructor argument: `Task.embeds`
DERIVED = (*WIDTHS, _EMBEDS)  # constructor arguments that are no keys


def check_python_model(model: object) -> None:
    """Raises `UserError` for an invalid model from Python."""
    if isinstance(model, nn.Module):
        check_module(model)
        return
    is_class_of_others = isinstance(model, type) and not (issubclass(model, nn.Module) or is_iterated(model))
    if is_class_of_others or not (callable(model) or is_iterated(model)):
        raise UserError(
            f"model={shown(repr(model))}: expected a torch.nn.Module, a function of (in_features, num_classes) that makes "
            "one, or a program"
        )
    if callable(model) and not is_iterated(model):
        _check_signature(model)


def check_module(model: object) -> None:
    """Raises `UserError` unless the model is a module instance without a wrapper."""
    name = type(model).__name__
    if isinstance(model, type):
        raise UserError(f"model={model.__name__} is a class: expected a module, such as {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise UserError(f"model={shown(repr(model))}: expected a torch.nn.Module, got {name}")
    for wrapper in (_WRAPPERS[base.__name__] for base in type(model).__mro__ if base.__name__ in _WRAPPERS):
        raise UserError(f"model={name} is wrapped by {wrapper}: pass the module itself")


def _check_signature(make: Callable[..., object]) -> None:
    """Raises `UserError` for a function that does not accept two widths."""
    try:
        inspect.signature(make).bind(1, 1)
    except ValueError:  # a function without a signature
        return
    except TypeError as error:
        name = getattr(make, "__name__", type(make).__name__)
        raise UserError(f"model={name} is called with (in_features, num_classes): {error}") from error


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The source of a run's model: the configuration or Python."""

    choice: Choice
    python_model: PythonModel = None

    @property
    def name(self) -> str:
        """The model's name in `result.json`."""
        if self.python_model is None:
            return self.choice.name
        return getattr(self.python_model, "__name__", type(self.python_model).__name__)

    @property
    def trains(self) -> bool:
        """Whether the model is trained. A program is iterated instead."""
        return not is_iterated(self.choice.load() if self.python_model is None else self.python_model)

    @property
    def reads_sparse(self) -> bool:
        """Whether layer 0 may read sparse rows, at least for some widths."""
        return bool(
            getattr(self.choice.load() if self.python_model is None else self.python_model, "reads_sparse", False)
        )

    @property
    def reads_relations(self) -> bool:
        """Whether layers distinguish edge types."""
        if self.python_model is None:
            return bool(getattr(self.choice.load(), "reads_relations", False))
        return reads_types(self.python_model) or reads_types(self.trial())

    def unread(self, widths: Widths) -> str:
        """Returns a warning if the model ignores the data's edge features, or ""."""
        if widths.edge_width == 0 or self.python_model is not None or not self.trains or "edge_width" in self._takes:
            return ""
        return (
            f"model={self.choice.name} ignores edge features ({widths.edge_width} columns): model=gat and "
            "model=gine read them"
        )

    @property
    def reads_edge_index(self) -> bool:
        """Whether the model is, or may be, an (x, edge_index) module."""
        model = self.trial()
        return model is None or isinstance(model, EdgeIndexModel)

    def trial(self) -> nn.Module | Program | None:
        """Makes the model on the meta device, or adapts the user's module.

        The data's widths are still unknown, so placeholder widths are used. Raises
        `UserError` for errors that name a model key. Returns None after other errors,
        because the widths may be the cause. The ranks make the model again.
        """
        if isinstance(self.python_model, nn.Module):
            module: nn.Module = adapted(self.python_model)
            return module
        if self.python_model is None:
            self.choice.check(extra=DERIVED)
        widths = Widths(in_features=16, num_classes=16, edge_width=16, num_relations=2)
        try:
            with _building, torch.device("meta"), torch.random.fork_rng(devices=[]):
                return adapted(self._make(widths)) if self.trains else self.make_program()
        except UserError as error:
            if str(error).startswith(tuple(f"model.{key}=" for key in self.choice.arguments)):
                raise
        except Exception:
            return None
        return None

    def holds_inverse(self, model: object, *, in_batches: bool) -> bool:
        """Returns whether the graph must hold each edge's reverse.

        Batches need them for any model with inverse edges.

        Args:
            model: From `trial`. If it is None, the key `model.inverse` decides.
            in_batches: Whether the strategy samples batches.
        """
        if model is None and self.python_model is None:
            return in_batches and bool(self.choice.arguments.get("inverse", False))
        return bool(getattr(model, "inverse" if in_batches else "undirected", False))

    def make_program(self) -> Program:
        """Makes a new program, if `trains` is false."""
        if self.python_model is None:
            program: Program = self.choice.create()
        elif isinstance(self.python_model, type):
            program = self.python_model()
        else:  # ranks may be threads
            program = copy.deepcopy(self.python_model)  # type: ignore[assignment]
        return program

    def make_model(self, widths: Widths, seed: int, task: Task | None = None) -> nn.Module:
        """Makes a new model with the same initial parameters on all ranks.

        Parameters do not depend on the precision. An (x, edge_index) module is adapted.
        Raises `UserError` for other models without `num_layers`, and for parameters
        that ranks cannot train together.

        Args:
            widths: Sizes that the model must fit.
            seed: Seed of the initial parameters.
            task: Task whose parameters become part of the model. Default: none.
        """
        with _building:
            torch.manual_seed(seed)
            module = self._make(widths, task)
            if isinstance(module, nn.Module) and not module.training:  # otherwise its parts keep their modes
                module.train()
            model: nn.Module = adapted(module)
            if isinstance(model, HeteroModel) and widths.schema is not None:
                model.fit_types(widths.schema, widths.in_features, widths.edge_width)
            if task is not None:
                task.size_head(widths.num_targets, widths.edge_width)
                task.adopt(model)
            if task is not None and self.python_model is not None:
                task.expected = type(module).__name__, widths.num_classes
            if task is not None and (head := task.head()) is not None:
                model.add_module(HEAD, head)
        if not isinstance(getattr(model, "num_layers", None), int):
            raise UserError(
                f"model={type(model).__name__} needs an attribute num_layers, the number of adjacencies it reads, or a "
                "forward(x, edge_index) as in PyG"
            )
        check_parameters(module)
        return model

    def calls(self, model: nn.Module, widths: Widths) -> list[str]:
        """Lists the exchanges of the model's forward pass, in order."""
        with _building, torch.random.fork_rng(devices=[]):
            return calls(model, widths.in_features, widths.edge_width)

    @property
    def _takes(self) -> Mapping[str, object]:  # arguments of the constructor
        return inspect.signature(self.choice.load()).parameters

    def _make(self, widths: Widths, task: Task | None = None) -> nn.Module:
        if isinstance(self.python_model, nn.Module):
            module = copy.deepcopy(self.python_model)  # ranks may be threads
            as_trained(module)
            return module
        if self.python_model is not None:
            result: Any = self.python_model(widths.in_features, widths.num_classes)  # type: ignore[operator]
            check_module(result)
            return result  # type: ignore[no-any-return]
        arguments = {"in_features": widths.in_features, "num_classes": widths.num_classes}
        arguments |= {name: getattr(widths, name) for name in WIDTHS[2:] if name in self._takes}
        arguments |= {_EMBEDS: True} if task is not None and task.embeds and _EMBEDS in self._takes else {}
        model: nn.Module = self.choice.create(**arguments)
        return model


def fit(settings: Settings, strategy: ExecutionStrategy, sampler: Sampler | None, model: object) -> None:
    """Sets the number of hops that an (x, edge_index) module reads from a batch.

    Raises `UserError` if the strategy splits the edges of a layer between ranks.
    """
    if not isinstance(model, EdgeIndexModel) or strategy.reads.all_edges:
        return
    if reason := strategy.lacks(JoinedLayers):
        raise UserError(f"strategy={settings.strategy.name}: model={type(model).__name__} {reason}")
    ability = strategy.ability(JoinedLayers)
    if ability is not None and ability.by_owners and sampler is not None and sampler.redraw:
        raise UserError(
            f"sampler.options.redraw=true: model={type(model).__name__} reads one edge_index in all layers, and owners draw for "
            f"strategy={settings.strategy.name}: remove the option, or use strategy=individual_sample"
        )
    # Unsampled batches have the edges within a share, and the edges into its seeds.
    model.num_layers = 2 if sampler is None else sampler.num_hops


def reads_sparse(settings: Settings, source: ModelSource, strategy: ExecutionStrategy) -> bool:
    """Whether ranks may keep features as sparse rows."""
    return not dense_readers(settings, source, strategy)


def dense_readers(settings: Settings, source: ModelSource, strategy: ExecutionStrategy) -> list[str]:
    """Lists the parts of a run that read dense rows only."""
    readers = {
        f"strategy={settings.strategy.name}": not strategy.lacks(SparseRows),
        f"model={source.name}": source.reads_sparse,
        f"label_inputs={settings.label_inputs}": settings.label_inputs is None,
        f"features.place={settings.features.place}": settings.features.place != "disk",
        f"comm={settings.comm.name}": settings.comm.name != "nccl",  # sparse products run on the CPU
    }
    return [name for name, sparse in readers.items() if not sparse]


def describe(model: nn.Module) -> dict[str, str]:
    """Describes parameters and buffers by name: index, shape and dtype."""
    parameters, buffers = list(model.named_parameters()), list(model.named_buffers())
    status = {name: "trained" if parameter.requires_grad else "not trained" for name, parameter in parameters}
    return {
        **{f"model.{name}": f"parameter {i}, {_form(p)}, {status[name]}" for i, (name, p) in enumerate(parameters)},
        **{f"model.{name}": f"buffer {i}, {_form(buffer)}" for i, (name, buffer) in enumerate(buffers)},
    }


def _form(tensor: Tensor) -> str:
    return f"{'shape unknown' if is_lazy(tensor) else list(tensor.shape)} {tensor.dtype}"


@torch.no_grad()
def share_state(comm: Communicator, model: nn.Module) -> None:
    """Copies the leader's parameters and buffers to all ranks. Collective.

    Values are sent as bytes, because backends do not support all dtypes.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        if not is_lazy(tensor):
            numbers = tensor.detach().reshape(-1).to(comm.device, copy=True)
            comm.broadcast(numbers.view(torch.uint8), src=0)
            tensor.copy_(numbers.view_as(tensor))


def create_steps(settings: Settings, source: ModelSource) -> tuple[ExecutionStrategy, GradientSync]:
    """Creates the strategy and the synchronisation.

    If workers exchange rows in every step, an asynchronous mode only delays gradients,
    which does more harm than late rows. Rows are then exchanged less often instead,
    unless task or model need current ones.
    """
    strategy: ExecutionStrategy = settings.create_strategy()
    sync: GradientSync = settings.sync.create()
    needs_rows = source.reads_relations or settings.task.load().pairs
    if needs_rows or not strategy.reads.all_edges or (late := sync.late_rows()) is None:
        return strategy, sync
    return strategy, late[2] if strategy.delay_rows(*late[:2]) else sync
