"""Records a model's exchanges, to compare ranks before the first step."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gnnkit.model.two_ranks import TrialRows, run_alone


def calls(model: nn.Module, in_features: int, edge_width: int = 0) -> list[str]:
    """Returns a forward pass's exchanges in order: operation, width and layer.

    Includes the parameters from which the rows were computed, because swapped exchanges
    of equal width would otherwise go unnoticed and give wrong sums. Runs a copy of the
    model on a small graph. The list ends where the copy fails.

    Args:
        model: The model, which is not modified.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
    """
    problems: list[str] = []
    with contextlib.suppress(Exception):  # the model may require a larger graph
        replica, names = _copy_model(model)
        run_alone(replica, TrialRows(in_features, edge_width), lambda engine: _CallRecorder(engine, names, problems))  # type: ignore[arg-type, return-value]
    return problems


class _CallRecorder:
    """An engine, or a part of one, that records every call with rows."""

    def __init__(self, engine: object, names: Mapping[int, str], problems: list[str]) -> None:
        """Stores the arguments.

        Args:
            engine: The wrapped engine.
            names: The model's parameter names, by id.
            problems: Receives a line per call.
        """
        self._engine, self._names, self._problems = engine, names, problems

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        if name in ("topology", "typed"):
            return _CallRecorder(value, self._names, self._problems)
        if not callable(value):
            return value

        def call_and_note(*arguments: Any, **keys: Any) -> Any:
            rows = [argument for argument in arguments if isinstance(argument, Tensor)]
            if rows:
                layer = next((argument for argument in arguments if isinstance(argument, int)), 0)
                kind = next((argument for argument in arguments if isinstance(argument, str)), name)
                self._note(kind, layer, rows)
            return value(*arguments, **keys)

        return call_and_note

    def _note(self, kind: str, layer: int, rows: list[Tensor]) -> None:
        sources = sorted(set().union(*(_sources(tensor, self._names) for tensor in rows)))
        width = math.prod(rows[0].shape[1:])
        self._problems.append(f"{kind} of {width} columns in layer {layer} of {', '.join(sources) or 'the input'}")


def _copy_model(model: nn.Module) -> tuple[nn.Module, dict[int, str]]:
    """Copies a model but shares parameter values. All of them require gradients.

    Returns the copy, and the parameter names by id.
    """
    parameters = dict(model.named_parameters())
    copies = {name: nn.Parameter(p.detach().cpu(), p.is_floating_point()) for name, p in parameters.items()}
    replica = copy.deepcopy(model, {id(parameters[name]): parameter for name, parameter in copies.items()})
    return replica.cpu(), {id(parameter): name for name, parameter in replica.named_parameters()}


def _sources(rows: Tensor, names: Mapping[int, str]) -> set[str]:
    """Returns the names of the parameters from which a tensor was computed."""
    leaf_ids, seen_nodes, ahead = {id(rows)}, set(), [rows.grad_fn]
    while ahead:
        node: Any = ahead.pop()
        if node is not None and node not in seen_nodes:
            seen_nodes.add(node)
            leaf_ids.add(id(getattr(node, "variable", None)))
            ahead += [following for following, _ in node.next_functions]
    return {names[tensor_id] for tensor_id in leaf_ids if tensor_id in names}
