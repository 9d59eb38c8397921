"""Databases of tables: what each model of job=init reaches, and what it selects.

    uv run python benchmarks/databases.py FOLDER --table NAME --freeze test --seeds 3

Each folder has tables, tasks and, if the guesses are wrong, manifest.yaml. For each
seed, a line has the validation and test metric of gradient boosting on the entity's row
alone and with summaries of its past, of a model of the graph, and of their mean. The
first lines have those of rules: the best single column or, for ranked lists, each way
to rank candidates without a model. Lists are measured by MAP. The last rows have means
over seeds, and what validation selected.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from gnnkit_tables import Tables, graph_keys
from gnnkit_tables.baselines import Baseline, best_column, rank_by_rules
from gnnkit_tables.build import build_columns, build_graph, with_scores
from gnnkit_tables.encode import is_embedded
from gnnkit_tables.select import Candidate, Trial, list_candidates, metric_of, train_candidate

from gnnkit.graph import Graph


def read_candidates(
    folder: str, table: str | None, freeze: str
) -> tuple[Graph, list[Candidate], Sequence[Baseline | None]]:
    """Returns the targets' columns, the candidates, and the rules.

    The last candidate lacks the past, unless rows are ranked: an entity's row is the
    same for all of them.
    """
    data = Tables(folder, table=table, freeze=freeze)
    database, targets, tables = data._encode(data._read(*data._open()), data.split)
    graph, scored_graph = (build_graph(database, targets, part) for part in (tables, with_scores(tables, targets)))
    columns = build_columns(database, targets, tables)
    candidates = list_candidates(graph, scored_graph, columns, graph_keys(database, targets))
    if targets.pairs is not None:
        return columns, candidates, rank_by_rules(targets)
    own_columns = range(
        sum(not is_embedded(name) for name in tables[targets.entity].names)
    )  # which come before the past
    if own_columns:
        row = dataclasses.replace(columns, features=np.asarray(columns.features)[:, own_columns], feature_names=None)
        candidates.append(("gradient boosting on the entity's row", row, candidates[-1][2]))
    return columns, candidates, [best_column(columns)]


def measure(folder: str, table: str | None, freeze: str, seeds: int) -> Iterator[str]:
    """Yields lines for rules, for candidates and seeds, and for means over seeds."""
    columns, candidates, rules = read_candidates(folder, table, freeze)
    metric, figures, test_figures = metric_of(columns), dict[str, list[Trial]](), []
    best_of = min if metric == "mae" else max
    yield from (str(rule) for rule in rules if rule is not None)
    ranking = [Trial(rule.name, {}, rule.val, rule.test) for rule in rules if rule is not None and rule.column]
    for seed in range(seeds):
        trials = []
        for candidate in candidates:
            begin = time.process_time()
            trial = train_candidate(candidate, {"seed": seed}, metric)
            trials.append(trial)
            figures.setdefault(trial.name, []).append(trial)
            seconds = time.process_time() - begin
            yield f"seed {seed}: {trial.name}: val {trial.val:.4f}, test {trial.test:.4f}, {seconds:.0f} CPU seconds"
        eligible_trials = [trial for trial in trials if "entity's row" not in trial.name]
        best = best_of([*eligible_trials, *ranking], key=lambda trial: trial.val)
        test_figures.append(best.test)
        yield f"seed {seed}: selected: {best.name}: test {best.test:.4f}"
    for name, rows in figures.items():
        val, test = statistics.fmean(row.val for row in rows), statistics.fmean(row.test for row in rows)
        yield f"{metric}: {name}: val {val:.4f}, test {test:.4f}"
    yield f"{metric}: selected: test {statistics.fmean(test_figures):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--table", help="task, if there are several")
    parser.add_argument("--freeze", default="none", choices=("none", "test"))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for folder in options.folders:
        for line in measure(folder, options.table, options.freeze, options.seeds):
            print(f"{folder} {options.table or ''} {options.freeze}: {line}", flush=True)


if __name__ == "__main__":
    main()
