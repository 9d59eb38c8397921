"""The configuration and model as text, which ranks compare before the first step."""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gnnkit.comm import Communicator
from gnnkit.config import leaves
from gnnkit.config.settings import AUTO
from gnnkit.jobs.configuration import redact_config
from gnnkit.jobs.order import Order
from gnnkit.prepare.kept import fingerprint
from gnnkit.result.result import versions

OWN_KEYS = (
    "output",
    "cache",
    "threads",
    "report",
    "report_port",
    "launcher.name",
    "launcher.ask",
    "trainer.progress_bar",
)  # may differ between ranks


def identity(order: Order) -> dict[str, str]:
    """Returns the values that must be equal on all ranks, by key.

    Secrets are omitted, as in `config.yaml`.
    """
    settings, graph, model = order.settings, order.graph, order.model
    keys = {key: json.dumps(value) for key, value in leaves(redact_config(settings.composed))}
    chosen = [settings.dataset, settings.partition.nodes, settings.sampler, settings.strategy]
    chosen += [settings.order, settings.comm, settings.sync, settings.model, settings.task]
    chosen += [*settings.logger, *settings.callback]
    return {
        **{key: value for key, value in keys.items() if key not in OWN_KEYS},
        **{
            f"{choice.kind}={choice.name}": choice.origin
            for choice in chosen
            if choice is not None and choice.name != AUTO
        },
        **{f"version of {name}": version for name, version in versions().items()},
        "build of torch": torch.__version__,
        **({} if graph is None else {"graph": fingerprint(graph)}),
        **({} if model is None else {"given model": order.source.name}),
        **(of_model(model) if isinstance(model, nn.Module) else {}),
    }


def of_model(model: nn.Module) -> dict[str, str]:
    """Describes parameters and buffers by name: index, shape and dtype."""
    parameters, buffers = list(model.named_parameters()), list(model.named_buffers())
    trained = {name: "trained" if parameter.requires_grad else "not trained" for name, parameter in parameters}
    return {
        **{f"model.{name}": f"parameter {i}, {_form(p)}, {trained[name]}" for i, (name, p) in enumerate(parameters)},
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
