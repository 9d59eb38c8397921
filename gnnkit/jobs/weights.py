"""The trained parameters of a run, as one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from gnnkit.config import of_run
from gnnkit.errors import UserError
from gnnkit.jobs.models import HEAD, ModelSource, Widths
from gnnkit.jobs.rows import NAMES
from gnnkit.plugins import arguments_of, plugin_name
from gnnkit.settings import Choice
from gnnkit.storage import write_atomically

FILE = "model.safetensors"  # in the run folder
_METADATA = "widths"  # the only key, as safetensors writes several in a random order
_WIDTHS = ("in_features", "num_classes", "edge_width")


def save(model: nn.Module, widths: Widths, folder: Path) -> None:
    """Writes the parameters and buffers under the module's own names.

    Args:
        model: The model.
        widths: The sizes that the model fits.
        folder: The run folder.
    """
    tensors = {
        name: value.detach().cpu().clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)
    }
    sizes = json.dumps({name: getattr(widths, name) for name in _WIDTHS})
    write_atomically(folder / FILE, dump_tensors(tensors, metadata={_METADATA: sizes}))


def read(folder: Path) -> tuple[dict[str, Tensor], Widths]:
    """Reads what `save` has written. Raises `UserError` for any other folder."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"checkpoint={folder}: there is no {FILE}, choose the folder of a run that has trained")
    try:
        with safe_open(path, framework="pt") as opened:
            found = json.loads((opened.metadata() or {})[_METADATA])
            widths = Widths(**{name: int(found[name]) for name in _WIDTHS})
            return {name: opened.get_tensor(name) for name in opened.keys()}, widths  # noqa: SIM118 - no mapping
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(f"checkpoint={folder}: {FILE} is not the model of a run: {error}") from error


def load(folder: Path, model: nn.Module | None = None) -> nn.Module:
    """Returns the model of a run with trained parameters, in evaluation mode.

    Raises `UserError` for a folder without a trained model, and for another model.

    Args:
        folder: The run folder.
        model: The model, whose parameters are replaced. Default: a new one as
            `config.yaml` says, for runs of a configured model.
    """
    tensors, widths = read(folder)
    if model is None:
        model = _configured(folder, widths)
    elif not hasattr(model, HEAD):  # parameters of the task
        tensors = {name: value for name, value in tensors.items() if not name.startswith(f"{HEAD}.")}
    parameter = next(iter(tensors.values()), None)
    if parameter is not None and parameter.is_floating_point():
        model = model.to(parameter.dtype)
    fill(model, tensors, folder)
    return model.eval()


def fill(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Replaces parameters and buffers. Raises `UserError` for those of another model.

    Args:
        model: The model.
        tensors: From `read`.
        folder: The run folder, for the error.
    """
    wanted = {name: list(value.shape) for name, value in model.state_dict().items()}
    for name in [*wanted, *(name for name in tensors if name not in wanted)]:
        kept = list(tensors[name].shape) if name in tensors else None
        if kept != wanted.get(name):
            raise UserError(
                f"model: {name} has shape {wanted.get(name, 'none')}, but {kept or 'none'} in {folder / FILE}: "
                "take the model that was trained"
            )
    model.load_state_dict(tensors)


def _configured(folder: Path, widths: Widths) -> nn.Module:
    """Makes the model that the configuration of the run names."""
    choice, task = (
        Choice(kind, plugin_name(kind, section), arguments_of(kind, section))
        for kind, section in ((kind, of_run(folder)[kind]) for kind in ("model", "task"))
    )
    try:
        source = ModelSource(choice)
        choice.check(extra=_WIDTHS)
    except UserError as error:
        raise UserError(
            f"checkpoint={folder}: model={choice.name} is not installed, hand in the model that was trained"
        ) from error
    return source.make_model(widths, 0, task.create())


def class_names(folder: Path) -> list[str] | None:
    """Reads the names of the classes of a run, if there are any."""
    path = folder / NAMES
    try:
        names = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError) as error:
        raise UserError(f"checkpoint={folder}: {NAMES} cannot be read: {error}") from error
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UserError(f"checkpoint={folder}: {NAMES} is no list of names")
    return names
