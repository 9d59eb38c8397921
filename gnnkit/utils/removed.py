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


_SLOW_LINK = "use comm=slow_link comm.gigabits=1 comm.milliseconds=0.2 (pip install gnnkit-slow-link)"

REMOVED: Mapping[str, RemovedKey] = {
    "comm.link": RemovedKey((None,), _SLOW_LINK),
    "compare.link": RemovedKey((None,), _SLOW_LINK),
    "plan.flops": RemovedKey((None,), "job=plan measures an epoch on this machine, so leave it out"),
    "plan.latency": RemovedKey((None,), "set plan.bandwidth, by which job=plan divides the exact bytes of a step"),
    "plan.ranks_per_host": RemovedKey((None,), "set plan.memory to the GiB of a single rank"),
    **dict.fromkeys(
        ("strategy.clusters", "strategy.clusters_per_batch", "strategy.clusters_by"),
        RemovedKey((None,), "use strategy=cluster (pip install gnnkit-preset)"),
    ),
    **dict.fromkeys(
        ("strategy.split", "strategy.chunks", "strategy.resplit_every"),
        RemovedKey((None,), "use strategy=dynamic (pip install gnnkit-preset)"),
    ),
    **dict.fromkeys(
        ("strategy.correction", "strategy.correction_steps", "strategy.correction_batch_size"),
        RemovedKey((None, "none"), "use strategy=llcg or strategy=coverage (pip install gnnkit-preset)"),
    ),
    "strategy.degrees": RemovedKey(
        ("global",), "use strategy.options.degrees=local to treat a share as a graph of its own"
    ),
    "strategy.control_variates": RemovedKey(
        (None,), "use strategy.options.control_variates=false to average without them"
    ),
    "exchange.max_age": RemovedKey((10,), "use exchange.options.max_age=N for another number of epochs than 10"),
    "exchange.smoothing": RemovedKey((0.0,), "use exchange.options.smoothing=SHARE to average late rows"),
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
}
