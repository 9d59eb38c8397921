"""Lists the exchanges of a model, to compare ranks before the first step."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gnnkit.engine.trial import Trial, relations_of
from gnnkit.model.exactness import ONE_RANK, ROWS


def calls(model: nn.Module, in_features: int, edge_width: int = 0) -> list[str]:
    """Lists the exchanges of a forward pass in order: operation, width and layer.

    Also lists the parameters that the rows stem from. Exchanges of equal width that
    trade places would otherwise look alike, and give wrong sums without a word. Runs a
    copy on three nodes. The list ends where the copy fails.

    Args:
        model: The model, which stays as it is.
        in_features: Columns of a node's features.
        edge_width: Columns of an edge's features. Default: 0, no edge features.
    """
    problems: list[str] = []
    with contextlib.suppress(Exception):  # the model may need a larger graph
        replica, names = _copied(model)
        trial = Trial(ONE_RANK, 0, edge_width, next(replica.parameters()).dtype, ROWS, relations_of(replica))
        trial.engine = _Listening(trial.engine, names, problems)  # type: ignore[assignment]
        trial.forward(replica, in_features)
    return problems


class _Listening:
    """An engine that notes every call that gets rows."""

    def __init__(self, engine: object, names: Mapping[int, str], problems: list[str]) -> None:
        """Keeps the parts.

        Args:
            engine: Does the work.
            names: The model's parameters, by id.
            found: Receives a line for each call.
        """
        self._engine, self._names, self._found = engine, names, problems

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        if not callable(value):
            return value

        def called(*arguments: Any, **keys: Any) -> Any:
            rows = [argument for argument in arguments if isinstance(argument, Tensor)]
            if rows:
                layer = next((argument for argument in arguments if isinstance(argument, int)), 0)
                kind = next((argument for argument in arguments if isinstance(argument, str)), name)
                self._note(kind, layer, rows)
            return value(*arguments, **keys)

        return called

    def _note(self, kind: str, layer: int, rows: list[Tensor]) -> None:
        sources = sorted(set().union(*(_sources(tensor, self._names) for tensor in rows)))
        width = math.prod(rows[0].shape[1:])
        self._found.append(f"{kind} of {width} columns in layer {layer} of {', '.join(sources) or 'the input'}")


def _copied(model: nn.Module) -> tuple[nn.Module, dict[int, str]]:
    """Copies a model, but for the numbers of its parameters. All of these are trained.

    Returns the copy, and the names of the parameters by id.
    """
    named = dict(model.named_parameters())
    shared = {name: nn.Parameter(p.detach().cpu(), p.is_floating_point()) for name, p in named.items()}
    replica = copy.deepcopy(model, {id(named[name]): parameter for name, parameter in shared.items()})
    return replica.cpu(), {id(parameter): name for name, parameter in replica.named_parameters()}


def _sources(rows: Tensor, names: Mapping[int, str]) -> set[str]:
    """Names the parameters that a tensor was computed from."""
    reached, seen, ahead = {id(rows)}, set(), [rows.grad_fn]
    while ahead:
        node: Any = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            reached.add(id(getattr(node, "variable", None)))
            ahead += [following for following, _ in node.next_functions]
    return {names[tensor_id] for tensor_id in reached if tensor_id in names}
