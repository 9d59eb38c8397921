"""Keys of earlier versions that are no longer read.

A key of a plugin is removed where the plugin's YAML file does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class RemovedKey(NamedTuple):
    """A key of earlier versions."""

    defaults: tuple[Any, ...]  # values at which recorded configurations may have it
    advice: str  # what to use instead, or the value that always holds


REMOVED: Mapping[str, RemovedKey] = {
    "trainer.exact_finish": RemovedKey(
        (None, "auto"),
        "use trainer.exact_shares=[0.1,SHARE], the shares of exact epochs at the start and the end",
    ),
    "strategy.max_drift": RemovedKey((None, "auto"), "set strategy.local_iterations to a number, which a run keeps"),
    "strategy.max_iterations": RemovedKey(
        (None, "auto"), "set strategy.local_iterations to a number, which a run keeps"
    ),
    "sampler.edge_ids": RemovedKey((True,), "blocks always have edge positions where a model reads them"),
    "sampler.least": RemovedKey((0,), "use sampler.options.least=NUMBER with sampler=balanced"),
    "sampler.most": RemovedKey((None,), "use sampler.options.most=NUMBER with sampler=balanced"),
    "sampler.redraw": RemovedKey((False,), "use sampler.options.redraw=true with a sampler of neighbours"),
    "sampler.fill": RemovedKey((False,), "use sampler.options.fill=true with sampler=neighbor"),
    "sampler.importance": RemovedKey(
        (None,), "runs compute unbiased weights themselves; in Python, the classes of gnnkit.sampler take importance"
    ),
    "sampler.threads": RemovedKey((None,), "it is now always threads=, the threads per rank"),
    "sampler.num_hops": RemovedKey((2,), "it is now always the model's number of layers, model.num_layers"),
    "sampler.alpha": RemovedKey(
        (0.0, 1.0), "use sampler.options.alpha=NUMBER with sampler=weighted or metropolis_hastings"
    ),
    "sampler.walk_length": RemovedKey((10,), "use sampler.options.walk_length=NUMBER with sampler=metropolis_hastings"),
    "sampler.num_walks": RemovedKey((10,), "use sampler.options.num_walks=NUMBER with sampler=metropolis_hastings"),
    "sampler.floor": RemovedKey((None,), "use sampler.options.floor=NUMBER with sampler=metropolis_hastings"),
    "sampler.sharpness": RemovedKey((None,), "use sampler.options.sharpness=NUMBER with sampler=metropolis_hastings"),
    "sampler.embeddings": RemovedKey((None,), "use sampler.options.embeddings=FILE with sampler=metropolis_hastings"),
    "sync.trim": RemovedKey(
        (None,),
        "trimmed_mean always drops a tenth of the workers at each end; another share is an aggregation of your own",
    ),
    "sync.damping": RemovedKey(
        (None, "none"), "a late gradient always counts with its share of the rows; use sync.mode=ssp to bound staleness"
    ),
    "sync.gradients_per_step": RemovedKey((None,), "it is now always the number of workers"),
    "sync.rounds": RemovedKey((1,), "use sync.options.rounds=NUMBER with sync=neighbour"),
    "trainer.plateau_factor": RemovedKey((None,), "a plateau always multiplies the learning rate by 0.1"),
    "trainer.plateau_patience": RemovedKey((None,), "it is now always 10 evaluations"),
    "trainer.min_delta": RemovedKey(
        (None,), "any improvement counts; in Python, gnnkit.callback.Leader takes min_delta"
    ),
    "trainer.final_average": RemovedKey((True,), "the saved model is always the workers' mean"),
    "features.policy": RemovedKey(("exact",), "it is now always exact: the rows that batches need next are cached"),
    "features.direct": RemovedKey((False,), "reads always go through the operating system's page cache"),
    "features.reads": RemovedKey(
        ("threads", "io_uring"), "io_uring now always reads where the system permits it, else threads"
    ),
    "strategy.batching": RemovedKey(
        ("plain",), "use strategy.options.batching=balanced with strategy=individual_sample"
    ),
    "strategy.window": RemovedKey((8,), "use strategy.options.window=NUMBER with strategy=individual_sample"),
    "strategy.cache_rows": RemovedKey(
        (None,), "a tenth of the nodes; use strategy.options.cache_rows=NUMBER for another number"
    ),
    "strategy.mode": RemovedKey(("cooperative",), "strategy=joint_sample is always cooperative"),
    "order.size": RemovedKey((1024,), "use order.options.size=NUMBER with order=community"),
    "dataset.threads": RemovedKey((None,), "use dataset.options.threads=NUMBER with dataset=synthetic"),
    "task.supervision_share": RemovedKey((None,), "use task.options.supervision_share=SHARE with task=link_prediction"),
    "callback.summary.depth": RemovedKey((2,), "use callback.summary.options.depth=NUMBER"),
    "logger.mlflow.run_name": RemovedKey((None,), "use logger.mlflow.options.run_name=NAME"),
    "logger.mlflow.tracking_uri": RemovedKey(
        (None,), "set MLFLOW_TRACKING_URI, or logger.mlflow.options.tracking_uri=URI"
    ),
    "logger.wandb.run_name": RemovedKey((None,), "use logger.wandb.options.run_name=NAME"),
    "logger.wandb.group": RemovedKey((None,), "use logger.wandb.options.group=NAME"),
    "logger.wandb.offline": RemovedKey((False,), "use logger.wandb.options.offline=true"),
}
