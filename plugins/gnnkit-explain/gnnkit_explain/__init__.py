"""Explains a trained model's predictions for some nodes: gnnkit's job `explain`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from gnnkit.config.settings.fields import Section
from gnnkit.errors import UserError
from gnnkit.jobs.job import OnRanks
from gnnkit.jobs.order import Order
from gnnkit.utils.ranges import shown

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork
    from gnnkit.prepare.facts import Needs

MAX_NODES = 1000  # explained in one run


def _node_ids(key: str, value: Any) -> tuple[int | str, ...]:
    """Reads a user's node id or a list of ids, each once."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for node in ids:
        if isinstance(node, bool) or not isinstance(node, int | str) or node == "":
            raise UserError(f"{key}={shown(value)} must be a node id, a whole number or a text, or a list of ids")
    if len(ids) > MAX_NODES:
        raise UserError(f"{key} has {len(ids):,} ids, at most {MAX_NODES:,} are explained in one run")
    return tuple(dict.fromkeys(ids))


@dataclass(frozen=True, slots=True)
class ExplainKeys(Section):
    """The keys of job=explain."""

    nodes: Annotated[tuple[int | str, ...], _node_ids]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise UserError("job=explain needs nodes=ID or nodes=[ID,ID], as in the column id of predictions")


class Explain(OnRanks):
    """job=explain, whose leader reads the complete graph."""

    name = "explain"
    keys = ExplainKeys
    reads_checkpoint = True
    one_worker = True
    reads_rows = True
    needs_labels = False

    def check_parts(self, order: Order) -> Order:
        task = order.settings.task
        if order.source.trains and not task.load().labels_nodes:
            raise UserError(
                f"job=explain: task={task.name} predicts pairs of nodes, and this job explains outputs of single nodes: use "
                "PyG's Explainer on gnnkit.load(run), as in docs/howto/explain.md"
            )
        return super().check_parts(order)

    def rank_work(self, *, trains: bool) -> RankWork:
        from gnnkit_explain.explain import explain

        return explain

    def needs(self, order: Order) -> Needs:
        return replace(super().needs(order), graph=True, features=True)
