"""Link prediction."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit.engine import derive
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.graph.graph import HELD_OUT
from gnnkit.graph.split import warn_random_split
from gnnkit.graph.times import newest
from gnnkit.kernels.sums import wide
from gnnkit.sampler import Sampler
from gnnkit.sampler.events import Mask
from gnnkit.sampler.links import (
    Links,
    NegativeRule,
    Timeline,
    links_of,
    pair_codes,
    pairs_of,
)
from gnnkit.sampler.targets import LinkRelation
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.task.base import PredictionColumns, Task
from gnnkit.task.decoder import EventDecoder, PairDots, ProductMLP, dot, score_all, score_all_at
from gnnkit.task.event_ranking import NUM_RANKED, RULES, EventRanking, measure_rules
from gnnkit.task.item_ranking import ItemRanking, Scorer, TopItems, metric_names
from gnnkit.task.labelled_edges import check_pairs
from gnnkit.task.link_split import (
    EdgeSplit,
    check_negatives,
    draw_split,
    edge_filters,
    find_relation,
    held_out_scores,
    read_relation,
    read_split,
    relation_number,
    repeat_by_popularity,
    score_at_times,
    split_events,
    with_edges,
    with_events,
    with_negatives,
)
from gnnkit.task.ranking import HITS, interleave, ranking
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import MAX_COUNT, MAX_WIDTH, one_of, share, switch, whole

LOSSES = ("cross_entropy", "bpr", "softmax")


def link_losses(name: str, scores: Tensor, labels: Tensor, negatives: int) -> Tensor:  # [k]
    """Computes pair losses. Their sum over k is the step's mean.

    `cross_entropy` classifies each pair. The other losses compare an edge with its
    negative pairs only: `bpr` with each of them (Rendle et al., UAI 2009), `softmax`
    with all of them at once. A group's loss counts for each of its pairs, and is
    returned in the edge's row, with zeros for its negative pairs.

    Args:
        name: One of `LOSSES`.
        scores: [k] scores of edges, then of the first edge's negative pairs, the
            second edge's, and so on, as from `supervised_pairs`.
        labels: [k] 1 for edges, else 0.
        negatives: Number of negative pairs per edge.
    """
    if name == "cross_entropy":
        return F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
    num_edges = len(scores) // (1 + negatives)
    edges, negative = scores[:num_edges, None], scores[num_edges:].view(num_edges, negatives)
    if name == "bpr":
        losses = F.softplus(negative - edges).mean(1)
    else:
        losses = torch.logsumexp(torch.cat([edges, negative], 1), 1) - edges[:, 0]
    return torch.cat([losses * (1 + negatives), torch.zeros_like(scores[num_edges:])])


_SAMPLING = ("uniform", "popularity", "historical")
_SHARES = {"task.val_share": 0.05, "task.test_share": 0.1}  # shares of held-out edges
_SUPERVISED = 0.3  # share of the edges that an epoch predicts, unless it predicts all
_TOP_K = 20  # length of the ranked lists with task.top_k=auto
_SPLIT, _EVALUATION = 1, 2  # purposes of random keys


class LinkPrediction(Task):
    """Choose this task to predict which edges exist.

    The model embeds nodes. A pair's score is the dot product of two embeddings, or an
    MLP on their elementwise product. The loss is the binary cross-entropy over edges
    and sampled negative pairs. Validation and test edges, with their reverse edges, are
    removed from the graph first. No step passes messages over the edges that it
    predicts.

    In a graph with several relations, one relation's edges are predicted. All
    other relations pass messages, except its reverse relations.

    Args:
        width: Embedding size.
        decoder: "dot" or "mlp".
        negatives: Number of negative pairs per training edge.
        eval_negatives: Number of negative pairs per evaluated edge.
        val_share: Share of validation edges. If None, 0.05.
        test_share: Share of test edges. If None, 0.1.
        filtered: Whether to exclude edges from negative pairs: training edges in
            training, and all edges in evaluation.
        seed: Seed for the split and for negative pairs in evaluation.
        relation: Name of the relation to predict, one of `graph.schema.edge_types`, or
            PyG's edge type, such as `("user", "buys", "item")`. If None, the only
            relation, or all edges for models that read no types.
        loss: "cross_entropy" over pairs, "bpr" or "softmax" over an edge and its
            negative pairs.
        negative_sampling: "uniform"; "popularity", which draws a training negative's
            other node in proportion to its number of training edges to the power 0.75;
            or, if edges are split by time, "historical", which draws a quarter of them
            among the earlier destinations of the source.
        top_k: Length of ranked lists. The run then ranks all destinations without
            an edge for each source, which measures recall, NDCG and MRR in addition and
            recommends items. "auto": 20 if the relation joins two node types. If None,
            no lists.
    """

    metrics = ("mrr", *(f"hits_{k}" for k in HITS), "roc_auc", "average_precision")
    splits = ("val", "test")
    pairs, noun = True, "edge"
    hides_edges = True
    timed = frozenset({"logits", "vectors", "embeddings"})
    embeds = True
    least_skill = 0.04  # an area of 0.52 on held-out edges
    without_learning = "chance"

    def __init__(
        self,
        width: int = 64,
        decoder: str = "dot",
        negatives: int = 1,
        eval_negatives: int = 100,
        val_share: float | None = None,
        test_share: float | None = None,
        filtered: bool = True,
        seed: int = 0,
        relation: str | Sequence[str] | None = None,
        loss: str = "cross_entropy",
        negative_sampling: str = "uniform",
        top_k: str | int | None = "auto",
    ) -> None:
        self.width = whole("task.width", width, 1, MAX_WIDTH)
        self.decoder = one_of("task.decoder", decoder, ("dot", "mlp"))
        self.unit_of_outputs = "task.width" if decoder == "mlp" else None
        self._head: nn.Module | None = None
        self.negatives = whole("task.negatives", negatives, 1, MAX_COUNT)
        self.eval_negatives = whole("task.eval_negatives", eval_negatives, 1, MAX_COUNT)
        self.shares = {"task.val_share": val_share, "task.test_share": test_share}
        self.val_share, self.test_share = _read_shares(self.shares)
        self.filtered = switch("task.filtered", filtered)
        self.seed = whole("task.seed", seed, 0, 2**63 - 1)
        self.relation = read_relation(relation)
        self.loss = one_of("task.loss", loss, LOSSES)
        self.negative_sampling = one_of("task.negative_sampling", negative_sampling, _SAMPLING)
        self.top_k = top_k if top_k in ("auto", None) else whole("task.top_k", top_k, 1, MAX_COUNT)
        self.list_length = _TOP_K if self.top_k == "auto" else int(self.top_k or 0)
        names = () if top_k is None else metric_names(self.list_length)
        rules = (f"{rule}_mrr" for rule in RULES)
        of_lists = (*names, *(f"popularity_{name}" for name in names), NUM_RANKED) if names else ()
        self.metrics_of_some = (*of_lists, *rules)
        self._rules: tuple[Links, dict[str, float]] | None = None  # figures of `measure_rules`
        self.ranking: ItemRanking | None = None  # of the latest run
        self._event_ranking: EventRanking | None = None
        self._ranks = False
        self._decoder: EventDecoder | None = None  # of the model
        self._links: Links | None = None

    @property
    def progress(self) -> str:
        return f"val_{metric_names(self.list_length)[0]}" if self._ranks else super().progress

    def adopt(self, model: nn.Module) -> None:
        if not isinstance(decoder := getattr(model, "decoder", None), EventDecoder):
            return
        self._decoder, self._ranks = decoder, False
        self.reads_events = True
        self.without_learning, self.least_skill = "the best rule without a model", 0.0
        if self._links is not None:
            decoder.fit(self._links)

    def begin(self, worker: Worker) -> None:
        self._links = links_of(worker.rows)
        if not self._scores_at_times(worker) and _item_ranking(self, worker) is not None:
            self._ranks = True
            self.without_learning, self.least_skill = "the items' popularity", 0.0
        elif self._links.at_own_times:
            self.without_learning, self.least_skill = "the best rule without a model", 0.0

    def _scores_at_times(self, worker: Worker) -> bool:
        """Returns whether held-out pairs are scored as of their own times."""
        return links_of(worker.rows).at_own_times and (worker.samples_by_time or self._decoder is not None)

    def num_outputs(self, num_classes: int) -> int:
        return self.width

    def head(self) -> nn.Module | None:
        if self._head is None and self.decoder == "mlp":
            self._head = ProductMLP(self.width)
        return self._head

    def score(self, outputs: Tensor, events: Tensor | None = None) -> Tensor:  # [..., 2, width] -> [...]
        """Scores embedding pairs.

        Args:
            outputs: [..., 2, width] embeddings of sources and destinations.
            events: [..., 3] sources, destinations and times of a split by time.
        """
        if self._decoder is not None:
            assert self._links is not None
            return self._decoder(outputs, events, self._links)  # type: ignore[no-any-return]
        head = self.head()
        scores: Tensor = dot(outputs) if head is None else head(outputs)
        return scores

    def check(self, strategy: ExecutionStrategy, sampler: Sampler | None) -> None:
        check_pairs("link_prediction", strategy, sampler)

    def prepare(self, graph: Graph) -> tuple[Graph, Links]:
        pairs, n, number = pairs_of(graph.csc), graph.num_nodes, relation_number(graph, self.relation)
        is_predicted = np.ones(len(pairs), bool)
        if number is not None and graph.edge_types is not None:
            is_predicted = graph.edge_types == number
        val, test, is_held_out, timeline = self._split(graph, pairs, is_predicted, number)
        by_time = timeline.train_time is not None
        has_held_out = by_time or graph.val_edges is not None or graph.test_edges is not None
        if number is not None and not has_held_out:  # edges without a predicted counterpart stay
            codes = pair_codes(pairs, n)
            is_held_out &= np.isin(codes, codes[is_held_out & is_predicted])
        relation = None if number is None else find_relation(graph, number, pairs, is_held_out)
        training = is_predicted & ~is_held_out
        if not np.any(training & (pairs[:, 0] != pairs[:, 1])):
            of_relation = "" if number is None else f" of the relation {graph.schema.edge_types[number]}"
            raise UserError(f"task=link_prediction: the dataset has no training edges{of_relation}")
        _check_ranking(self.top_k, relation, is_filtered=self.filtered)
        filters: tuple[Ids | None, Ids | None] = None, None
        if self.filtered:
            held_out = np.concatenate([val.pairs, test.pairs])
            filters = edge_filters(pairs[is_predicted], is_held_out[is_predicted], held_out, n)
            if not by_time:
                check_negatives(filters[1], n, relation)
        rule = self._training_rule(filters[0], pairs[training], n, timeline)
        val, test = with_negatives(graph, val, test)
        given = test.negatives if val.negatives is None else val.negatives
        evaluation = NegativeRule(filters[1], self.eval_negatives if given is None else given.shape[1])
        draws = _SUPERVISED, derive(self.seed, _EVALUATION)
        links = Links(n, val, test, rule, evaluation, *draws, has_held_out, relation, timeline)
        leave = is_held_out if by_time else is_held_out & links.hides(graph.edge_types)
        return with_edges(graph, np.flatnonzero(~leave)), links

    def prepare_by_time(self, graph: Graph) -> tuple[Graph, Links]:
        return graph.evolve(**dict.fromkeys(HELD_OUT)), self.prepare(graph)[1]

    def _training_rule(self, excluded: Ids | None, pairs: Ids, num_nodes: int, timeline: Timeline) -> NegativeRule:
        """Returns how negative pairs of training edges [k, 2] are drawn."""
        is_historical = self.negative_sampling == "historical"
        if is_historical and timeline.events is None:
            raise UserError(
                "task.negative_sampling=historical draws earlier destinations, and the edges are not split by time: set "
                "dataset.split='{by: time, shares: [0.7,0.15,0.15]}'"
            )
        popular = repeat_by_popularity(pairs, num_nodes) if self.negative_sampling == "popularity" else None
        return NegativeRule(excluded, self.negatives, popular, is_historical)

    def _split(self, graph: Graph, pairs: Ids, is_predicted: Mask, number: int | None) -> EdgeSplit:
        """Returns held-out edges like `split_events`, without times if not by time."""
        by_time = graph.time_borders is not None and graph.edge_time is not None
        if by_time or graph.val_edges is not None or graph.test_edges is not None:
            _check_no_shares(self.shares)
            return split_events(graph, pairs, is_predicted) if by_time else read_split(graph, pairs, number)
        if self.val_share or self.test_share:
            warn_random_split(graph)
        shares, key = (self.val_share, self.test_share), derive(self.seed, _SPLIT)
        return draw_split(pairs, graph.num_nodes, shares, key, is_predicted)

    def prepare_known(self, graph: Graph) -> tuple[Graph, Links]:
        task, complete, graph = copy.copy(self), graph, graph.evolve(time_borders=None)
        task.negative_sampling = "uniform"  # none is drawn
        if graph.val_edges is None and graph.test_edges is None:
            task.val_share = task.test_share = 0.0
        graph, links = task.prepare(graph)
        if not _ranks(self, links):
            raise UserError(
                "job=predict: task=link_prediction recommends if task.relation joins two node types, and otherwise predicts "
                "held-out edges: write=[logits] gives the rows of all nodes, and job=test scores the edges"
            )
        return graph, links if graph.edge_time is None else with_events(links, complete)

    def recommend(self, outputs: Tensor, worker: Worker) -> TopItems | None:
        if self._scores_at_times(worker):
            return None  # of a run, in which each event has its own time
        links = links_of(worker.rows)
        if self._decoder is not None and links.timeline.events is None:
            raise UserError(
                "job=predict: the model scores pairs at a time, and the edges have none: use data with edge times"
            )
        if (ranking := _item_ranking(self, worker)) is None:
            return None
        return ranking.top(outputs, worker, self._scorer(links))

    def _scorer(self, links: Links) -> Scorer:
        """Returns a score of all items, as of the time after the newest edge."""
        if self._decoder is None:
            return functools.partial(score_all, head=self.head())
        assert links.timeline.events is not None
        assert links.relation is not None
        assert links.relation.ends is not None
        now = newest(links.timeline.events[:, 2].astype(np.int64)) + 1
        score = functools.partial(self._decoder, links=links)
        return functools.partial(score_all_at, score=score, now=now, first_item=links.relation.ends[2])

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return link_losses(self.loss, self.score(outputs), labels, self.negatives)

    def losses_of(self, out: Tensor, rows: Tensor, labels: Tensor, features: Tensor | None = None) -> Tensor:  # [k]
        if self._decoder is not None:
            return link_losses(self.loss, self.score(out[rows], features), labels, self.negatives)
        if self.head() is not None or out.device.type != "cpu":
            return super().losses_of(out, rows, labels)
        scores: Tensor = PairDots.apply(out.to(wide(out.dtype)), rows)
        return link_losses(self.loss, scores, labels, self.negatives)

    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        return self._measure(outputs, worker, self.splits, lists=True)

    def measure_progress(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        splits = self.splits[:1] if len(links_of(worker.rows).val) else self.splits
        lists = self.monitored.endswith(metric_names(self.list_length))
        return self._measure(outputs, worker, splits, lists=lists)

    def _measure(self, outputs: Tensor, worker: Worker, splits: Sequence[str], *, lists: bool) -> dict[str, float]:
        """Computes the metrics of some splits, `lists` by time included. Collective."""
        links = links_of(worker.rows)
        metrics: dict[str, float] = {}
        for split in splits:
            if len(getattr(links, split)):
                scores = worker.comm.gather(held_out_scores(self.score, outputs, worker, links, split))
                figures = ranking(torch.cat(scores)) if scores else {}
                metrics |= {f"{split}_{name}": value for name, value in worker.comm.share(figures).items()}
        if links.at_own_times:
            figures = self._figures_of_rules(worker, links)
            metrics |= {name: value for name, value in figures.items() if name.partition("_")[0] in splits}
        if not self._scores_at_times(worker) and (items := _item_ranking(self, worker)) is not None:
            metrics |= items.measure(outputs, worker, self._scorer(links), splits)
        return metrics | (self._measure_lists(outputs, worker, splits) if lists else {})

    def _measure_lists(self, outputs: Tensor, worker: Worker, splits: Sequence[str]) -> dict[str, float]:
        """Computes the metrics of lists as of the events' times. Collective."""
        links = links_of(worker.rows)
        if not (_ranks(self, links) and self._scores_at_times(worker)):
            return {}
        if self._event_ranking is None or self._event_ranking.links is not links:
            self._event_ranking = EventRanking(links, self.list_length)
        score = functools.partial(score_at_times, self.score, outputs, worker)
        return self._event_ranking.measure(worker, score, splits)

    def chance(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        if self._ranks and (items := _item_ranking(self, worker)) is not None:
            recall = metric_names(self.list_length)[1]
            return {name: value for name, value in items.popularity_figures().items() if name.endswith(recall)}
        if (links := links_of(worker.rows)).at_own_times:
            figure = self._figures_of_rules(worker, links).get
            return {f"{split}_mrr": max(figure(f"{split}_{rule}_mrr", 0.0) for rule in RULES) for split in self.splits}
        return {f"{split}_roc_auc": 0.5 for split in self.splits}

    def _figures_of_rules(self, worker: Worker, links: Links) -> dict[str, float]:
        """Returns the figures of `measure_rules`, computed once. Collective."""
        if self._rules is None or self._rules[0] is not links:
            self._rules = links, measure_rules(worker, links, self.splits)
        return self._rules[1]

    def score_warnings(self, metrics: Mapping[str, float]) -> list[str]:
        tied_splits = [split for split in self.splits if _are_tied(split, metrics, self.eval_negatives)]
        if not tied_splits:
            return []
        return [
            (
                f"task=link_prediction: the scores of all pairs are equal, with an edge or without ({tied_splits[-1]}_roc_auc=0.500), so "
                "the metrics are meaningless: use a smaller trainer.lr, more epochs or another model"
            )
        ]

    def predictions(self, outputs: Tensor, worker: Worker) -> Tensor | None:  # [num_test, 3] float64
        """Returns the test edges' source, destination and score."""
        links = links_of(worker.rows)
        links = replace(links, evaluation=replace(links.evaluation, count=0))
        parts = worker.comm.gather(held_out_scores(self.score, outputs, worker, links, "test"))
        if not parts:
            return None
        scores = interleave(parts, len(links.test))
        return torch.cat([torch.from_numpy(np.array(links.test.pairs, np.float64)).to(scores.device), scores], 1)

    def columns(self, rows: Array, ids: Array, classes: Sequence[str] | None) -> PredictionColumns:
        source, destination = rows[:, :2].astype(np.int64).T
        return {"source": ids[source], "destination": ids[destination], "score": rows[:, 2]}


def _read_shares(shares: Mapping[str, float | None]) -> list[float]:
    """Returns the shares of validation and test edges, or their defaults."""
    read = {key: share(key, value) for key, value in shares.items() if value is not None}
    values = [read.get(key, default) for key, default in _SHARES.items()]
    if sum(values) >= 1:
        text = " and ".join(f"{key}={value}" for key, value in zip(_SHARES, values, strict=True))
        raise UserError(f"{text} leave no training edges")
    return values


def _check_no_shares(shares: Mapping[str, float | None]) -> None:
    """Raises `UserError` for shares of a split that the dataset provides."""
    for key, value in shares.items():
        if value is not None:
            raise UserError(
                f"{key}={value} has no effect, because the dataset provides val_edges or test_edges, or a split by time: remove the key"
            )


def _check_ranking(top_k: str | int | None, relation: LinkRelation | None, *, is_filtered: bool) -> None:
    """Raises `UserError` if `task.top_k` is set for edges that cannot be ranked."""
    joins_types = relation is not None and relation.joins_types
    if top_k not in ("auto", None) and not (joins_types and is_filtered):
        remedy = "set task.filtered=true" if joins_types else "set task.top_k=null, or predict such a relation"
        reason = "needs the filter of seen edges" if joins_types else "needs a relation between two node types"
        raise UserError(f"task.top_k={top_k} {reason}: {remedy}")


def _ranks(task: LinkPrediction, links: Links) -> bool:
    """Returns whether the task ranks all destinations of the relation."""
    can_rank = task.top_k is not None and links.evaluation.excluded is not None
    return can_rank and links.relation is not None and links.relation.joins_types


def _item_ranking(task: LinkPrediction, worker: Worker) -> ItemRanking | None:
    """Returns the ranking of all destinations, or None if the relation has none."""
    links = links_of(worker.rows)
    if not _ranks(task, links):
        return None
    if task.ranking is None or task.ranking.links is not links:
        task.ranking = ItemRanking(links, task.list_length, 1 if task.decoder == "dot" else 2 * task.width)
    return task.ranking


def _are_tied(split: str, metrics: Mapping[str, float], negatives: int) -> bool:
    """Returns whether metrics imply that each edge ties with its negative pairs.

    Every edge then has the middle rank, which does not occur otherwise.
    """
    mrr, area = (metrics.get(f"{split}_{name}", math.nan) for name in ("mrr", "roc_auc"))
    return area == 0.5 and math.isclose(mrr, 1 / (1 + negatives / 2), rel_tol=1e-9)
