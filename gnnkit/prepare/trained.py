"""The facts stored with a trained model, and new data in the form that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.dataset.base import both_ways
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Features, Graph, SparseFeatures, Split
from gnnkit.graph.graph import MARKS
from gnnkit.graph.unfit_columns import join_reasons, remedy
from gnnkit.launch.progress import warn
from gnnkit.prepare.columns import NumericTable, TrainedColumns, check_texts, find_ids, ignored_columns
from gnnkit.prepare.inputs import degrees_before_split, rows_to_fit
from gnnkit.prepare.run_partition import resumed_folder
from gnnkit.prepare.transform import Fill, InputRows, InputTransform, Scale, warn_of_edges
from gnnkit.result.result import INPUTS
from gnnkit.utils.documents import read_object
from gnnkit.utils.ranges import MAX_COUNT, shown, shown_names, switch, whole
from gnnkit.utils.storage import write_atomically

DEGREE = "log of in-edges"  # name of the column of `with_degree`
_SAMPLE = 1000  # rows sampled from the features


@dataclass(frozen=True, slots=True)
class Inputs:
    """Facts about the training graph that its model relies on."""

    features: list[str] | None  # column names in order. None: by position
    edge_features: list[str] | None
    both_ways: float  # share of edges that have a reverse edge
    unit_rows: bool  # whether each feature row adds up to 1
    edge_types: list[str] | None = None  # relation names in order. None: there is one relation
    scale: Scale = field(default_factory=lambda: Scale("none"))  # scale of the input rows
    fill: Fill = field(default_factory=Fill)  # replacement of empty cells, applied before the scale
    category_of: list[str] | None = None  # [width] as `Graph.category_of`
    text: str = "one_hot"  # one of TEXTS: how unseen text values are handled
    edge_category_of: list[str] | None = None  # as `category_of`, for `edge_features`
    node_types: list[str] | None = None  # names in the order of ids. None: one type, or saved by an earlier version
    label_classes: list[str] | None = None  # [k] classes of the last k columns (`label_inputs`). None: no such columns
    type_sizes: list[int] | None = None  # nodes of each type, in the order of ids. None: saved by an earlier version
    edge_weight: bool | None = None  # whether edges have weights. None: saved by an earlier version
    edge_classes: list[str] | None = None  # of edge labels, in order. None: no labels, numbers or an earlier version
    column_forms: list[str] | None = None  # as `Graph.column_forms`. None: unknown
    degree: bool = False  # whether the last feature column is `with_degree`'s, which data does not have

    @classmethod
    def of(cls, graph: Graph, inputs: str) -> Inputs:
        """Collects the facts of a graph. `inputs` is the configuration key."""
        reads = inputs == "features"
        return cls(
            list(graph.feature_names) if reads and graph.feature_names else None,
            list(graph.edge_feature_names) if graph.edge_feature_names else None,
            both_ways(graph.csc),
            reads and _has_unit_rows(graph.features),
            None if graph.edge_type_names is None else list(graph.edge_type_names),
            category_of=list(graph.category_of) if reads and graph.category_of else None,
            edge_category_of=list(graph.edge_category_of) if graph.edge_category_of else None,
            node_types=None if graph.node_types is None else [name for name, _ in graph.node_types],
            type_sizes=list(graph.schema.type_sizes),
            edge_weight=graph.csc.weight is not None,
            edge_classes=_edge_classes(graph),
            column_forms=list(graph.column_forms) if reads and graph.column_forms else None,
        )

    @classmethod
    def load(cls, folder: Path) -> Inputs | None:
        """Loads the facts that `save` wrote. Returns None if there is no such file.

        Raises `UserError` for an invalid file.
        """
        path = folder / INPUTS
        try:
            facts = cls._from_dict(read_object(path)) if path.exists() else None
        except (ValueError, TypeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} cannot be read: {error}") from error
        if facts is not None and not all(map(_are_names, facts.all_names)):
            raise UserError(f"{path} holds no names of columns")
        for size in [] if facts is None else facts.type_sizes or []:
            whole(f"{path}: type_sizes", size, 0, MAX_COUNT)
        if facts is not None and facts.edge_weight is not None:
            switch(f"{path}: edge_weight", facts.edge_weight)
        return facts

    @classmethod
    def unknown(cls) -> Inputs:
        """Returns facts that change no graph, for runs of earlier versions."""
        return cls(None, None, 0.0, False)

    @property
    def all_names(self) -> tuple[list[str] | None, ...]:
        columns = self.features, self.edge_features, self.category_of, self.edge_category_of, self.label_classes
        return *columns, self.column_forms, self.edge_classes, self.edge_types, self.node_types

    @property
    def transform(self) -> InputTransform:
        return InputTransform(self.fill, self.scale)

    def read(self, graph: Graph, folder: Path, *, node_types: bool = False) -> Graph:
        """Returns a graph in the form that the model reads: ordered, filled and scaled.

        Raises `UserError` for other columns and for unfilled cells.

        Args:
            graph: The graph.
            folder: The folder of the training run, for messages.
            node_types: Whether the model has weights by node type. Raises `UserError`
                if the graph's types are others. Default: no.
        """
        if node_types:
            self.check_node_types([name for name, _ in graph.schema.node_types], folder)
        graph = self.ordered(graph, folder)
        rows = self.read_rows(NumericTable.of_nodes(graph), folder)
        return _with_labels(with_columns(graph, rows), self.label_classes)

    def read_rows(self, table: NumericTable, folder: Path) -> NumericTable:
        """Fills and scales a table that has the model's columns in its order."""
        rows = self.transform.read(table, folder)
        for line in rows.describe_clipped():
            warn(line)
        return rows.load()

    def check_node_types(self, names: Sequence[str], folder: Path) -> None:
        """Raises `UserError` unless node types are those of training, in its order.

        Args:
            names: The node types of the data.
            folder: The folder of the training run, for the message.
        """
        if self.node_types is not None and list(names) != self.node_types:
            raise UserError(
                f"node types are {', '.join(names) or 'not named'} here, and {', '.join(self.node_types)} in the training data of {folder}, "
                "whose model has weights for each in this order: give the data the same types in the same order"
            )

    def ordered(self, graph: Graph, folder: Path) -> Graph:
        """Returns a graph with columns and relations in the model's order."""
        graph = with_degree(graph) if self.degree else graph
        edges = NumericTable.of_edges(graph)
        if (columns := self.node_columns(folder)) is not None:
            graph = with_columns(graph, columns.select(NumericTable.of_nodes(graph)))
        if (columns := self.edge_columns(folder)) is not None and edges is not None:
            edges = columns.select(edges)
            graph = graph.derive(
                edge_features=np.asarray(edges.rows), edge_feature_names=edges.names, edge_category_of=edges.category_of
            )
        return _renumber_relations(graph, self.edge_types)

    def node_columns(self, folder: Path) -> TrainedColumns | None:
        """Returns the node features that the model reads, None without names."""
        names = self.features
        return None if names is None else TrainedColumns(names, self.category_of, self.text, "node", folder)

    def edge_columns(self, folder: Path) -> TrainedColumns | None:
        """Returns the edge features that the model reads, None without names."""
        names = self.edge_features
        return None if names is None else TrainedColumns(names, self.edge_category_of, self.text, "edge", folder)

    @classmethod
    def _from_dict(cls, plain: Mapping[str, Any]) -> Inputs:
        values = {key: value for key, value in plain.items() if key not in ("scale", "fill")}
        return cls(**values, scale=Scale(**plain.get("scale", {"kind": "none"})), fill=Fill(**plain.get("fill", {})))

    def save(self, folder: Path) -> None:
        write_atomically(folder / INPUTS, json.dumps(asdict(self)).encode())


def with_degree(graph: Graph) -> Graph:
    """Appends log(1 + number of in-edges) to the features.

    Raises `UserError` for a graph of several node types.
    """
    if len(graph.schema.node_types) > 1:
        raise UserError("features.degree=true adds a column to one node type, the graph has several: remove the key")
    column, rows = np.log1p(degrees_before_split(graph)), graph.features
    if isinstance(rows, SparseFeatures):
        csr, ends = rows.csr, rows.csr.indptr[1:]
        columns = np.insert(csr.indices, ends, csr.num_sources)
        values = np.insert(np.asarray(csr.weight), ends, column)
        rows = SparseFeatures(CSC(csr.indptr + np.arange(len(csr.indptr)), columns, values, csr.num_sources + 1))
    else:
        rows = np.concatenate([np.asarray(rows), column[:, None].astype(rows.dtype)], 1)
    names, texts = graph.feature_names, graph.category_of
    return graph.derive(
        features=rows,
        feature_tables=None,
        feature_names=None if names is None else (*names, DEGREE),
        category_of=None if texts is None else (*texts, ""),
    )


def with_columns(graph: Graph, table: NumericTable) -> Graph:
    """Returns the graph with the table's columns as node features."""
    if table.rows is graph.features and table.missing is graph.missing:
        return graph
    return graph.evolve(
        features=table.rows, feature_names=table.names, category_of=table.category_of, missing=table.missing
    )


def _classes_of(graph: Graph) -> list[str]:
    """Returns the names or numbers of classes."""
    return [*map(str, graph.class_names or range(graph.num_classes))]


def _edge_classes(graph: Graph) -> list[str] | None:
    """Returns the names or numbers of the classes of edges, None for other labels."""
    if graph.edge_labels is None or graph.edge_labels.dtype.kind != "i":
        return None
    return [*map(str, graph.edge_class_names or range(int(graph.edge_labels.max(initial=-1)) + 1))]


def _with_known_labels(graph: Graph, classes: Sequence[str] | None) -> Graph:
    """Returns the graph with edge labels in the trained classes, or unknown ones.

    Raises `UserError` for another class.

    Args:
        graph: The graph, with the labels of its data.
        classes: The trained classes. If None, labels are numbers.
    """
    names = _edge_classes(graph)
    if names == classes and graph.edge_labels is not None:
        return graph
    if graph.edge_labels is None:
        unknown = np.full(graph.num_edges, np.nan) if classes is None else np.full(graph.num_edges, -1)
        return graph.evolve(edge_labels=unknown, edge_class_names=classes)
    if names is None or classes is None:
        return graph
    labels = graph.edge_labels
    for number in np.unique(labels[labels >= 0]):
        if names[number] not in classes:
            raise UserError(
                f"dataset.edge_label: an edge has the class {shown(names[number])}, and the model knows "
                f"{shown_names(classes)}: leave its label empty, or train again"
            )
    places = np.array([classes.index(name) if name in classes else -1 for name in names] + [-1])
    return graph.evolve(edge_labels=places[labels], edge_class_names=classes)


def _with_labels(graph: Graph, classes: list[str] | None) -> Graph:
    """Appends the training nodes' one-hot labels to the features, if models read them.

    Raises `UserError` for a graph without such labels, or with other classes.
    """
    if classes is None or graph.labels.ndim > 1 or graph.labels.dtype.kind == "f":  # which the task rejects
        return graph
    if len(graph.schema.node_types) > 1:
        raise UserError("label_inputs: labels are columns of one node type, and the graph has several: remove the key")
    is_input = graph.labelled & (graph.split == Split.TRAIN)
    if not is_input.any() or _classes_of(graph) != classes:
        raise UserError(
            f"label_inputs: the model reads the labels of training nodes, in the classes {shown_names(classes)}, and "
            f"the graph has {is_input.sum():,} of these nodes, in the classes {shown_names(_classes_of(graph))}: give it "
            "these labels with the split train"
        )
    one_hot = (graph.labels[:, None] == np.arange(len(classes))) & is_input[:, None]
    rows = np.asarray(graph.features)
    rows = np.concatenate([rows, one_hot.astype(rows.dtype)], 1)
    return graph.derive(features=rows, feature_names=None, category_of=None)


def fit(settings: Settings, graph: Graph) -> tuple[InputTransform, InputRows, list[str]]:
    """Fits a new model's transform. Returns it, the transformed rows, and lines.

    The lines describe the transform. If `inputs` is not "features", no column is
    transformed.
    """
    keys, table = settings.features, NumericTable.of_nodes(graph)
    if settings.inputs != "features":
        return InputTransform(), InputRows(table), []
    ignore, ids = ignored_columns(settings), find_ids(graph)
    lines = check_texts(graph, keys.text, ignore)
    lines += [f"features: {join_reasons(ids)}: {remedy([name for name, _ in ids], ignore)}"] if ids else []
    transform, rows, reason = InputTransform.fit(table, rows_to_fit(graph), fill=keys.fill, scale=keys.scale)
    lines = [*transform.fill.describe(table), *lines, *([reason] if reason else [])]
    return transform, rows, [*lines, *rows.describe_clipped()]


def as_read(settings: Settings, graph: Graph, run_folder: Path) -> tuple[Graph, list[str]]:
    """Returns the graph in the form that the model reads, and lines of description.

    Arguments as for `read_columns`.
    """
    graph, rows, facts, lines = read_columns(settings, graph, run_folder)
    return _with_labels(with_columns(graph, rows.load()), facts.label_classes), lines


def read_columns(settings: Settings, graph: Graph, run_folder: Path) -> tuple[Graph, InputRows, Inputs, list[str]]:
    """Returns the graph, its input rows, the facts about them, and lines.

    A new model's columns are transformed as `fit` chooses. For a trained model, the
    columns get its order and transform. Runs that train and stores write the facts into
    `run_folder`.
    """
    model, text = _load_trained(settings), settings.features.text
    if settings.inputs != "features":
        graph = graph.evolve(missing=None)  # these columns are not read
    if model is None:
        graph = with_degree(graph) if settings.features.degree else graph
        transform, rows, lines = fit(settings, graph)
        lines += warn_of_edges(graph)
        classes: list[str] | None = _classes_of(graph)
    else:
        facts, folder = model
        changes = settings.read_otherwise if settings.dataset.origin != "Python" else ()
        _warn_of_differences(facts, Inputs.of(graph, settings.inputs), folder, changes)
        graph, transform, text = facts.ordered(graph, folder), facts.transform, facts.text
        if (task := settings.task.create()).reads_labels:
            graph = _with_known_labels(graph, task.output_names(facts.edge_classes))
        table = NumericTable.of_nodes(graph)
        rows = transform.read(table, folder)
        lines = [*transform.fill.describe(table), *rows.describe_clipped()]
        classes = facts.label_classes
    facts = replace(Inputs.of(graph, settings.inputs), scale=transform.scale, fill=transform.fill, text=text)
    classes = None if settings.label_inputs is None else classes
    facts = replace(facts, label_classes=classes, degree=settings.features.degree)
    if settings.job.keeps_inputs:
        facts.save(run_folder)
    return graph, rows, facts, lines


def _load_trained(settings: Settings) -> tuple[Inputs, Path] | None:
    """Returns the facts that a trained model relies on, and its run folder.

    Returns None if the run starts a new model.
    """
    folder = resumed_folder(settings) if settings.checkpoint is None else Path(settings.checkpoint)
    facts = None if folder is None else Inputs.load(folder)
    return None if folder is None or facts is None else (facts, folder)


def take_stored(settings: Settings, plain: Mapping[str, object], run_folder: Path, root: Path) -> None:
    """Saves a store's facts as the run's, like `as_read`.

    Raises `UserError` if the trained model needs columns in another order or scale.

    Args:
        plain: The facts of the graph that the store was created from.
        run_folder: The run folder.
        root: The store.
    """
    if settings.label_inputs is not None:
        raise UserError(f"label_inputs: the store {root} has no columns of labels: use the original data set")
    facts = Inputs._from_dict(plain)
    if settings.features.degree and not facts.degree:
        raise UserError(f"features.degree=true: the store {root} has no such column: use the original data set")
    if (loaded_model := _load_trained(settings)) is not None:
        model, folder = loaded_model
        _warn_of_differences(model, facts, folder)
        pairs = ((model.features, facts.features, "node"), (model.edge_features, facts.edge_features, "edge"))
        for names, stored_names, item in pairs:
            if names is not None and stored_names is not None:
                TrainedColumns(names, None, model.text, item, folder).check(stored_names)
        for key in ("features", "edge_features", "edge_types", "scale", "fill"):
            store_value, model_value = getattr(facts, key), getattr(model, key)
            if store_value != model_value and store_value is not None and model_value is not None:
                raise UserError(
                    f"dataset.root={root}: {key.replace('_', ' ')} have another order or scale there than the model of "
                    f"{folder} reads: use the original data set"
                )
    if settings.job.keeps_inputs:
        facts.save(run_folder)


def _renumber_relations(graph: Graph, model_types: Sequence[str] | None) -> Graph:
    """Returns the graph with its relations numbered as in the trained model.

    Relations not seen in training come last.
    """
    names, types = graph.edge_type_names, graph.edge_types
    if model_types is None or names is None or types is None:
        return graph
    all_types = (*model_types, *(name for name in names if name not in model_types))
    number = {name: number for number, name in enumerate(all_types)}
    types = np.array([number[name] for name in names])[types]
    relations = sorted(graph.relations or (), key=lambda relation: number[relation.edge_type])
    return graph.evolve(edge_types=types, edge_type_names=all_types, relations=tuple(relations) or None)


def _warn_of_differences(model: Inputs, facts: Inputs, folder: Path, changes: Sequence[str] = ()) -> None:
    """Prints a warning for each difference, or else for each of the known `changes`.

    Raises `UserError` for numbers with another decimal mark, whose points or commas may
    separate thousands.
    """
    for mark, other in permutations(MARKS):
        for form in facts.column_forms or ():
            name = form.removeprefix(f"{mark}: ")
            if f"{other}: {name}" in (model.column_forms or ()):
                raise UserError(
                    f"dataset: column {name!r} has numbers with a {mark} here, and with a {other} in the training data of "
                    f"{folder}: write its numbers as there"
                )
    for line in [*(changes or _list_differences(model, facts, folder)), *_list_unnamed(model, facts, folder)]:
        warn(line)


def _list_unnamed(model: Inputs, facts: Inputs, folder: Path) -> list[str]:
    """Warns about columns that are named in the model but not in the data."""
    pairs = (("features", model.features, facts.features), ("edge features", model.edge_features, facts.edge_features))
    return [
        f"columns of {noun} have no names here, and are taken in the order of {folder}: {shown_names(names)}"
        for noun, names, data_names in pairs
        if names is not None and data_names is None
    ]


def _list_differences(model: Inputs, facts: Inputs, folder: Path) -> list[str]:
    """Warns if the graph was read in another way than the training graph."""
    lines = []
    if model.edge_types is None and facts.edge_types is not None and len(facts.edge_types) > 1:
        lines.append(
            f"edges have {len(facts.edge_types):,} types here, and those that trained the model of {folder} had none: all "
            "types are treated as one"
        )
    if abs(model.both_ways - facts.both_ways) > 0.5:
        way = "symmetrize it" if model.both_ways > facts.both_ways else "read it without reverse edges"
        lines.append(
            f"{facts.both_ways:.0%} of the edges have a reverse edge, and {model.both_ways:.0%} of those that trained "
            f"the model of {folder}: {way}, unless this is intended"
        )
    if model.unit_rows != facts.unit_rows:
        data_verb, model_verb = ("do", "did not") if facts.unit_rows else ("do not", "did")
        lines.append(
            f"rows of features {data_verb} add up to 1, and those that trained the model of {folder} {model_verb}: set "
            "the same row_normalize, unless this is intended"
        )
    return lines


def _has_unit_rows(features: Features) -> bool:
    """Returns whether the absolute values of each sampled nonzero row add up to 1."""
    if len(features) == 0 or features.shape[1] < 2:
        return False
    sums = np.abs(np.asarray(features[:_SAMPLE], np.float64)).sum(1)
    return bool(sums.any() and np.allclose(sums[sums > 0], 1, atol=1e-3))


def _are_names(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))
