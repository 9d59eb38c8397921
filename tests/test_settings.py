"""Every key of every section is read or refused, before anything is started."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_import.job import Import
from gnnkit_plan import Plan

from gnnkit import config, plugins
from gnnkit.__main__ import main
from gnnkit.config import SECTIONS, dotted_keys, keys
from gnnkit.config.completion import of_comment
from gnnkit.config.settings import Settings, TrainerSettings, ranks, settle, with_workers
from gnnkit.config.settings.fields import KeyRule, key_rules
from gnnkit.errors import UserError
from gnnkit.jobs import Order, builtin, check, start
from gnnkit.jobs.job import OnRanks, Run
from gnnkit.launch import environment
from gnnkit.launch.environment import StartedRank
from gnnkit.result.result import Result
from gnnkit.utils.ranges import one_of
from tests.cases import exhaustive, few
from tests.runs import compose_once

NAN, INF = math.nan, math.inf
COUNT = [0, -4, 2.5, NAN, INF]
OUT_OF_RANGE: dict[str, list[Any]] = {
    "dataset.num_words": COUNT,
    "dataset.min_class_size": COUNT,
    "dataset.edges": ["../calls.csv", "a/b.csv"],
    "dataset.nodes": ["../people.csv"],
    "dataset.graph": ["../people", "a/b"],
    "dataset.text": ["no_such_package", 3, ["hashed"]],
    "dataset.manifest": ["s3://bucket/manifest.yaml"],
    "dataset.links": [0, 1, "yes", None],
    "dataset.boosting": [0, 1, "yes", None],
    "dataset.until": [2.5, [2026]],
    "dataset.bipartite": ["users", 2],
    "task.edge_features": ["amount", 2],
    "task.label_delay": [-1, 2.5, "now", 2**63],
    "dataset.missing": ["none", 3, [[3]], [True]],
    "dataset.num_nodes": COUNT,
    "dataset.num_edges": [-1],
    "dataset.num_classes": [*COUNT, 10**9],
    "dataset.width": COUNT,
    "dataset.in_block": [-0.1, 1.1, NAN, INF],
    "dataset.noise": [-1, NAN, INF],
    "dataset.threads": [*COUNT, 10**6],
    "dataset.kind": ["tree"],
    "dataset.targets": ["labels"],
    "cache": ["none", "", 3],
    "on_exists": ["keep", ""],
    "permissions": ["public", "", None, 700],
    "features.dtype": ["float16", "fp8", "", None, 8],
    "features.place": ["ram", "", None],
    "features.cache": ["lots", "", "1XB", "-1GB", 2**61, None],
    "inexact": ["", "no", True, None],
    "memory": ["lots", "", "1XB", "1MB", "-1GB", 0, 2.5, 2**61, "1GB", None],
    "partition.nodes": ["none"],
    "partition.grid": ["4d", "", 3, [4, 1], [5, 1, 1], [-2, -2, 1], [True, 4, 1], [4.0, 1, 1]],
    "partition.replication": [0, 5, -1, 2.5],
    "partition.border": ["min", ""],
    "partition.path": ["/none", ""],
    "partition.options.balance": ["edge"],
    "partition.options.imbalance": [0, 2, NAN],
    "partition.options.width": COUNT,
    "partition.options.objective": ["words"],
    "partition.options.preset": ["jet"],
    "partition.options.threads": COUNT,
    "leader.rebalance": [0, 1, "yes", "auto", None],
    "verbose": [0, 1, "yes", "auto", None],
    "features.degree": [0, 1, "yes", "auto", None],
    "model.skip": [0, 1, "yes", None],
    "model.events": COUNT,
    "model.column": [-1, 2.5, NAN, INF],
    "task.k": COUNT,
    "model.pairs": [0, 1, "yes", None],
    "comm.gigabits": [0, -1, NAN, INF, "fast"],
    "comm.milliseconds": [-1, NAN, INF, "short"],
    "compare.ways": [[], 3, [3], None],
    "compare.seeds": [0, -1, 101, 1.5, None],
    "init.minutes": [-1, NAN, INF, 1e6, None, "two"],
    "plan.bandwidth": [0, -1, NAN, INF, 1e10],
    "plan.memory": [0, -1, NAN, INF, 1e10],
    "sampler.fanouts": [[], [-2], [2.5], ["a"], [True], [2**70], "all"],
    "sampler.clusters": ["/none.npy"],
    "sampler.target": ["similar", [-1.0], [NAN]],
    "sampler.time": ["past", "Strict", 3, True, None],
    "sampler.window": [0, 5, -1, 2.5, True, "a day"],  # 5: without sampler.time=window
    "sampler.pick": ["first", 3, True, None],
    "sampler.time_bound": ["edge", 3, True, None],
    "strategy.local_iterations": [*COUNT, "all"],
    "exchange.bits": [0, 3, 64, 2.5, "all"],
    "exchange.staleness": [-1, 2.5, NAN],
    "exchange.keep": [-0.1, 1.1, NAN],
    "exchange.variation": [-1, NAN, INF],
    "strategy.batch_size": [*COUNT, 2**40],
    "strategy.prefetch": COUNT,
    "strategy.topology": ["split", "replicated"],
    "strategy.features": ["split"],
    "strategy.cache": ["fifo"],
    "task.width": [*COUNT, 2**70],
    "task.decoder": ["bilinear", 1],
    "task.negatives": COUNT,
    "task.eval_negatives": COUNT,
    "task.val_share": [-0.1, 1, NAN, INF],
    "task.test_share": [-0.1, 1, NAN, INF, 0.95],
    "task.filtered": [1, "yes"],
    "task.seed": [-1, 2**63, 1.5],
    "task.relation": ["", True, 1.5, ["a"]],
    "task.negative_sampling": ["degree", 1],
    "task.top_k": [*COUNT, "all", 2**70],
    "task.loss": ["cubed"],
    "task.scale": ["row", 1],
    "task.threshold": ["best", 0, 1, -0.2, NAN, INF, True, [0.5]],
    "task.calibration": ["platt", 1, True],
    "task.class_weights": ["even", [], [0], [1, -1], [NAN], [INF], 3, True],
    "strategy.halo": ["two_hop"],
    "strategy.clusters": COUNT,
    "strategy.clusters_per_batch": COUNT,
    "strategy.clusters_by": ["metsi", 3],
    "strategy.sync_every": ["step", *COUNT],
    "strategy.average": ["median"],
    "strategy.resplit_every": COUNT,
    "strategy.chunks": COUNT,
    "strategy.correction_steps": COUNT,
    "strategy.correction_batch_size": [*COUNT, 2**40],
    "strategy.exchange_every": COUNT,
    "comm.timeout": [0, -1, NAN, INF, 1e300],
    "sync.average": ["krum"],
    "sync.mode": ["bsp"],
    "sync.staleness": [-1, 2.5],
    "sync.servers": [-1, 2.5, 10**6],
    "sync.on_lost": ["retry"],
    "sync.exchange": ["models"],
    "model.hidden": [*COUNT, 2**70],
    "model.num_layers": [*COUNT, 1001],
    "model.trees": [*COUNT],
    "model.leaves": [*COUNT, 1],
    "model.learning_rate": [0, -1, 1.5, float("nan")],
    "model.heads": [*COUNT, 2**70],
    "model.relation_width": [*COUNT, 2**70],
    "model.time_width": [*COUNT, 2**70],
    "model.beta": [-0.1, 1, NAN, INF],
    "model.out_heads": COUNT,
    "model.norm": ["", "rows", 3],
    "model.dropout": [-0.1, 1, NAN, INF],
    "model.negative_slope": [NAN, INF, -INF],
    "model.aggregator": ["min"],
    "model.bases": [*COUNT, 2**70],
    "model.blocks": [*COUNT, 2**70],
    "model.alpha": [-0.1, 1, NAN],
    "model.damping": [-0.1, 1, NAN],
    "model.tolerance": [-1, NAN, INF],
    "model.max_iterations": COUNT,
    "trainer.max_epochs": [*COUNT, 2**31],
    "trainer.optimizer": ["lbfgs"],
    "trainer.lr": [0, -1, 1e38, NAN, INF],
    "trainer.weight_decay": [-1, 1e7, NAN, INF],
    "trainer.precision": [16, 64.0, "bf16"],
    "trainer.check_val_every_n_epoch": COUNT,
    "trainer.log_every_n_steps": COUNT,
    "trainer.progress_bar": ["yes", 1],
    "trainer.checkpoint_every": COUNT,
    "trainer.checkpoint_every_n_steps": COUNT,
    "trainer.keep_checkpoints": COUNT,
    "trainer.checkpoint_every_minutes": [0, -1, NAN, INF],
    "trainer.on_nan": ["go"],
    "trainer.evaluation_memory": [0, NAN],
    "trainer.monitor": ["loss"],
    "trainer.schedule": ["steps", 3],
    "trainer.warmup_epochs": [-1, 1.5, None, "often"],
    "trainer.clip_norm": [0, -1, NAN, INF],
    "trainer.accumulate": COUNT,
    "trainer.max_time": [0, -1, NAN],
    "trainer.patience": COUNT,
    "trainer.exact_shares": [0.1, "always", [0.1], [-0.1, 0.1], [0.5, 0.5], [NAN, 0]],
    "launcher.num_nodes": [0, -1, 1.5],
    "dataset.duplicates": ["drop", "", None, 1],
    "launcher.cpus": [0, -1, NAN, INF],
    "launcher.gpus": [-1, 0.5],
    "launcher.wait": [0, -1, NAN, INF],
    "launcher.ask": [[], ["process"], "processes", None],
    "launcher.n_jobs": [0, -2, 1.5],
    "launcher.cluster": ["pbs", ""],
    "launcher.timeout_min": COUNT,
    "launcher.cpus_per_task": COUNT,
    "launcher.gpus_per_node": COUNT,
    "launcher.mem_gb": [0, -1, NAN, INF],
    "launcher.array_parallelism": COUNT,
    "workers": [*COUNT, 10**9, "all"],
    "parts": [*COUNT, 10**9, "auto"],
    "threads": [*COUNT, 10**6, "all"],
    "inputs": ["feature", ""],
    "types": ["drop", "", None, 1],
    "input_rows": ["csr", ""],
    "features.scale": ["minmax", "", None, 1],
    "features.fill": ["median", "", None, 1],
    "features.text": ["text", "", None, 1],
    "embedding": [*COUNT, 2**70],
    "label_inputs": [0, 1, -1, NAN, INF, "half"],
    "learned.scale": [0, -1, NAN, INF, 1e10],
    "learned.weight_decay": [-1, 1e7, NAN, INF],
    "seed": [-1, 2**63, 1.0, "x"],
    "job": ["trian", ""],
    "checkpoint": [3, ""],
    "nodes": [1.5, True, "", [[1]]],
    "write": ["weights", ["predictions", "rows"], 3],
    "write_format": ["xlsx", "", 3, ["npy"]],
    "write_by": ["column", "", 3, ["rows"]],
    "output": [""],
    "upload": ["", 3, "folder", "file:///folder"],
    "report": ["yes", 1, "life"],
    "profile": ["yes", 0],
    "restarts": [-1, 2.5, 1001, NAN],
    "runs": [3, "", ["a", ""]],
}
SWITCHES = ("report", "profile", "verbose", "features.degree", "model.skip", "leader.rebalance")
WITHOUT_RANGE = ("seed", "split", "root", "src", "dst", "id", "label", "edge_label", "time", "ignore", "resume", "symmetrize", "row_normalize",
                 "sort_ids", "task", "add_inverse_edge", "redraw", "edge_ids", "inverse", "neighbours", "self_loop", "one_hot", "skip",
                 "replace", "fill", "contiguous", "residual", "normalize", "checkpoint", "name", "options",
                 "partition", "account", "qos", "project", "experiment", "run_name", "group", "offline", "tracking_uri", "address")  # fmt: skip
OPTIONS = [(section, name) for section in SECTIONS for name in plugins.options(section)]
FIRST = [(section, plugins.options(section)[0]) for section in SECTIONS]
LONG = {("dataset", "edges"), ("sampler", "balanced"), ("task", "link_prediction")}
# Options whose keys other options have too, or whose ranges the plugin's tests hold.
REPEATED = {
    *(("dataset", name) for name in ("graphsaint", "npz", "ogb", "pystdlib", "tables")),
    *(("model", name) for name in ("gcn", "gin")),
    *(("partition", name) for name in ("hash", "kaminpar", "mtkahypar", "random", "stripes", "tiles")),
    *(("sampler", name) for name in ("full", "labor", "metropolis_hastings", "weighted")),
    ("strategy", "owned_seeds"),
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Records jobs instead of running jobs."""
    runs: list[Settings] = []

    def work(job: Run, order: Order) -> Result:
        runs.append(order.settings)
        return Result(order.settings.job.name, {})

    for kind in (OnRanks, Plan, builtin.Partition, Import):
        monkeypatch.setattr(kind, "work", work)
    return runs


@pytest.fixture
def refusal(runs: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Starts a job with a composed configuration, as the command does.

    Returns the one line that refuses it, or what is wrong.
    """
    monkeypatch.chdir(tmp_path)

    def refused(composed: dict[str, Any]) -> str:
        try:
            start(Order(settle(composed), folder=tmp_path / "run"))
        except UserError as error:
            return str(error) if "\n" not in str(error) and not runs else f"<{len(runs)} runs: {error}>"
        return "<no refusal>"

    return refused


@pytest.fixture(scope="session")
def compose_option(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """Composes the configuration in which `section` is `name`, and which runs."""
    clusters = tmp_path_factory.mktemp("data") / "clusters.npy"
    np.save(clusters, np.zeros(3, np.int64))
    requirements = {
        "npz": ["dataset.root=file"],
        "edges": ["dataset.root=folder"],
        "graphbolt": ["dataset.root=folder"],
        "graphsaint": ["dataset.root=folder"],
        "ogb": ["dataset.root=folder"],
        "saved": ["dataset.root=folder"],
        "tables": ["dataset.root=folder"],
        "store": ["dataset.root=folder"],
        "cluster": [f"sampler.clusters={clusters}"],
        "stored": [f"partition.path={clusters.parent}"],
    }

    @functools.cache
    def together(number: int) -> dict[str, Any]:
        """Composes one option of each section at once, which takes as long as one."""
        named = [(section, plugins.options(section)) for section in SECTIONS if section != "strategy"]
        row = [(section, names[number]) for section, names in named if number < len(names)]
        keys = [f"{section}={name}" for section, name in row]
        return compose_once(
            ["strategy=vertex_centric", *keys, *(key for _, name in row for key in requirements.get(name, []))]
        )

    def composed(section: str, name: str) -> dict[str, Any]:
        if section == "strategy":
            return compose_once([f"strategy={name}", "workers=4"])
        strategy = "individual_sample" if section == "sampler" or name == "tgat" else "vertex_centric"
        own = together(plugins.options(section).index(name))[section]
        times = ["sampler.time=strict"] if name == "tgat" else []
        return {**compose_once([f"strategy={strategy}", "workers=4", *times]), section: own}

    return composed


def leaves(section: str, composed: dict[str, Any]) -> Iterator[str]:
    """Yields the keys of a section that hold a value: `partition.options.seed`."""
    for key in dotted_keys({section: composed[section]}):
        if "." in key and not isinstance(read(composed, key), dict):
            yield key


def read(composed: dict[str, Any], key: str) -> Any:
    node: Any = composed
    for part in key.split("."):
        node = node[part]
    return node


def change_key(composed: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Returns the same configuration with another value of one key."""
    result = copy.deepcopy(composed)
    *parents, last = key.split(".")
    (read(result, ".".join(parents)) if parents else result)[last] = value
    return result


def wrong_types(value: Any) -> list[Any]:
    """Returns values that no key with this default takes."""
    if isinstance(value, bool):
        return [{"a": 1}, 3, "maybe"]
    return [{"a": 1}, [{"a": 1}], *([True, "x"] if isinstance(value, int | float) else [])]


@pytest.mark.slow
@few("section,name", OPTIONS, default=[option for option in FIRST if option not in LONG])
def test_a_neighbour_of_every_key_is_refused_with_the_nearest_key(
    section: str, name: str, compose_option: Callable[..., dict[str, Any]], refusal: Callable[..., str]
) -> None:
    config = compose_option(section, name)
    lines = {key: refusal(change_key(config, f"{key}x", 1)) for key in leaves(section, config)}
    wrong = {key: line for key, line in lines.items() if "x is not known: " not in line}
    assert wrong == {}
    # `name` is no argument of a plugin, so the nearest key is another.
    named = {key: line for key, line in lines.items() if key.rpartition(".")[2] != "name"}
    assert {key: line for key, line in named.items() if f"did you mean {key}?" not in line} == {}


@pytest.mark.slow
@few("section,name", OPTIONS, default=[option for option in FIRST if option not in LONG])
def test_a_wrong_type_of_every_key_is_refused_naming_key_and_value(
    section: str, name: str, compose_option: Callable[..., dict[str, Any]], refusal: Callable[..., str]
) -> None:
    config = compose_option(section, name)
    for key in leaves(section, config):
        for value in wrong_types(read(config, key)):
            line = refusal(change_key(config, key, value))
            key_name = key.removesuffix(".name")
            assert line.startswith((f"{key_name}=", f"{key_name}[0]=", f"{key_name}.", f"{key_name} ")), (
                f"{key}={value}: {line}"
            )


@pytest.mark.slow
@few("section,name", OPTIONS, default=[option for option in OPTIONS if option not in REPEATED])
def test_a_value_out_of_range_of_every_key_is_refused_naming_the_key(
    section: str, name: str, compose_option: Callable[..., dict[str, Any]], refusal: Callable[..., str]
) -> None:
    config = compose_option(section, name)
    for key in leaves(section, config):
        assert key in OUT_OF_RANGE or key.rpartition(".")[2] in WITHOUT_RANGE, f"{key}: which values are out of range?"
        for value in OUT_OF_RANGE.get(key, []):
            line = refusal(change_key(config, key, value))
            assert key in line.split(" must ")[0], f"{key}={value}: {line}"


@pytest.mark.slow
@pytest.mark.parametrize("key", [key.name for key in keys.read("", "config").keys if key.name != "strategy"])
def test_keys_of_the_run_are_checked(
    key: str, compose_option: Callable[..., dict[str, Any]], refusal: Callable[..., str]
) -> None:
    config = compose_option("model", "gcn")
    assert f"did you mean {key}?" in refusal(change_key(config, f"{key}x", 1))
    for value in (*OUT_OF_RANGE[key], {"a": 1}, [1], *(() if key in SWITCHES else (True,))):
        assert refusal(change_key(config, key, value)).startswith(f"{key}="), value


@pytest.mark.parametrize(
    "key", ["trainer.lr", "partition.grid", "comm.name", "model.name", "workers", "dataset", "trainer"]
)
def test_a_key_that_is_taken_away_is_named(
    key: str, compose_option: Callable[..., dict[str, Any]], refusal: Callable[..., str]
) -> None:
    config = copy.deepcopy(compose_option("model", "gcn"))
    *parents, last = key.split(".")
    del (read(config, ".".join(parents)) if parents else config)[last]
    assert refusal(config).startswith(f"{key.removesuffix('.name')} is missing")


SAMPLED = "strategy=individual_sample"
SIMILAR = ["sampler=metropolis_hastings", "sampler.target=similarity"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        exhaustive((["model.hiddn=3"], "model.hiddn is not known: did you mean model.hidden?")),
        (["model.hidden=-4"], "model.hidden=-4 must be a whole number from 1 to 1048576"),
        (["model.num_layers=0"], "model.num_layers=0 must be a whole number from 1 to 1000"),
        (["model.num_layers=5000"], "model.num_layers=5000 must be a whole number from 1 to 1000"),
        exhaustive((["model.dropout=nan"], "model.dropout=nan must be a number of at least 0 and below 1")),
        exhaustive((["model=gat", "model.heads=true"], "model.heads=True must be a whole number")),
        exhaustive(
            (["model=pagerank", "model.damping=2"], "model.damping=2 must be a number of at least 0 and below 1")
        ),
        (
            ["strategy.local_iterations=0"],
            "strategy.local_iterations=0 must be auto or a whole number from 1 to 2147483647",
        ),
        (["sync=leader", "sync.average=men"], "sync.average=men is not known: did you mean mean?"),
        exhaustive((["comm.timeout=.nan"], "comm.timeout=.nan must be a number above 0")),
        exhaustive(
            (["dataset=synthetic", "dataset.num_nodes=1"], "dataset.num_nodes=1 must be a whole number of at least 2")
        ),
        exhaustive(
            (
                ["dataset=synthetic", "dataset.num_node=9"],
                "dataset.num_node is not known: did you mean dataset.num_nodes?",
            )
        ),
        exhaustive(
            (
                ["partition=random", "partition.options.sed=3"],
                "partition.options.sed is not known: did you mean partition.opt",
            )
        ),
        (["sampler=neighbor"], "sampler=neighbor: strategy=vertex_centric does not sample: remove the sampler"),
        (
            ["strategy.local_iterations=4", "sync=leader", "sync.mode=ssp"],
            "sync.mode=ssp: strategy.local_iterations=4 averages models, which needs workers that step together",
        ),
        (
            ["strategy=preset_workload", "strategy.average=parameters", "sync=leader", "sync.mode=async"],
            "sync.mode=async: strategy.average=parameters averages models, which needs workers that step together",
        ),
        exhaustive((["sampler.fanouts=[5]"], "sampler.fanouts needs a sampler, and none is chosen")),
        ([SAMPLED, "sampler=cluster", "sampler.clusters=/none.npy"], "sampler.clusters=/none.npy cannot be read"),
        ([SAMPLED, "sampler=cluster"], "sampler.clusters is missing: set it with sampler.clusters=VALUE"),
        exhaustive(([SAMPLED, "sampler.fanouts=[5,a]"], "sampler.fanouts[1]=a must be a whole number from -1")),
        ([SAMPLED, "sampler.fanouts=[5]"], "sampler.fanouts has 1 hops, but model.num_layers=2"),
        ([SAMPLED, "strategy.batch_size=0"], "strategy.batch_size=0 must be a whole number from 1 to 2147483647"),
        (
            ["strategy=preset_workload", "strategy.exchange_every=2", "strategy.halo=none"],
            "strategy.halo=none does not go with strategy.exchange_every: the in-neighbours' rows are the ones that",
        ),
        (
            ["strategy=joint_sample", "partition=2d"],
            "partition.grid=2d: strategy=joint_sample has no process grid: use 1d",
        ),
        (
            ["strategy=joint_sample", "sampler=balanced"],
            "strategy=joint_sample: sampler=balanced draws from more than the in-edges of one node",
        ),
        exhaustive(
            ([SAMPLED, "partition=2d"], "partition.grid=2d: strategy=individual_sample has no process grid: use 1d")
        ),
        exhaustive(
            (
                [SAMPLED, *SIMILAR, "sampler.options.floor=0"],
                "sampler.options.floor=0 must be a number of at least 1e-09",
            )
        ),
        (
            [SAMPLED, *SIMILAR, "sampler.options.embeddings=/none.npy"],
            "sampler.options.embeddings=/none.npy cannot be read: ",
        ),
        (
            [SAMPLED, *SIMILAR, "strategy.features=partitioned"],
            "strategy.features=partitioned: sampler=metropolis_hastings reads all nodes' features, as "
            "does sampler.target=similarity",
        ),
        (
            [SAMPLED, *SIMILAR, "strategy.topology=partitioned"],
            "strategy.topology=partitioned: sampler=metropolis_hastings draws from more than the in-edges",
        ),
        exhaustive(
            (
                ["strategy=joint_sample", *SIMILAR],
                "strategy=joint_sample: sampler=metropolis_hastings draws from more than the in-edges",
            )
        ),
    ],
)
def test_the_command_refuses_values_before_anything_is_started(
    runs: list[Settings], arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "compose", compose_once)
    strategy = [] if arguments[0].startswith("strategy=") else ["strategy=vertex_centric"]
    assert main([*strategy, *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"gnnkit: error: {expected}")
    assert runs == []
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@few("num_layers", [1, 3], default=[3])
def test_a_sampler_that_a_strategy_brings_has_one_fanout_for_each_layer(num_layers: int) -> None:
    sampler = check(Order(settle(compose_once(["strategy=llcg", f"model.num_layers={num_layers}"])))).settings.sampler
    assert sampler is not None
    assert (sampler.name, sampler.arguments["fanouts"]) == ("neighbor", [15, 10, 10][:num_layers])


@pytest.mark.slow
def test_numbers_of_the_environment_are_numbers_where_a_key_takes_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"LR": "0.02", "N": "3", "OFF": "false", "BITS": "64", "JOB": "17", "BAD": "1;2"}.items():
        monkeypatch.setenv(name, value)
    env = "${oc.env:%s}"
    keys = {"trainer.lr": "LR", "workers": "N", "model.hidden": "N", "trainer.clip_norm": "LR", "report": "OFF"}
    keys |= {"trainer.precision": "BITS", "output": "JOB"}
    given = [f"{key}={env % name}" for key, name in keys.items()]
    actual = settle(compose_once(["strategy=vertex_centric", "trainer.weight_decay=${oc.env:NO_SUCH,1e-4}", *given]))
    assert (actual.trainer.lr, actual.trainer.weight_decay, actual.trainer.clip_norm) == (0.02, 1e-4, 0.02)
    assert (actual.workers, actual.model.arguments["hidden"], actual.report, actual.trainer.precision) == (
        3,
        3,
        False,
        64,
    )
    assert (actual.output, actual.composed["trainer"]["lr"]) == ("17", 0.02)
    with pytest.raises(UserError, match=r"^trainer.lr=1;2 must be a number above 0 and at most 1e\+06$"):
        settle(compose_once(["strategy=vertex_centric", "trainer.lr=${oc.env:BAD}"]))
    with pytest.raises(UserError, match=r"^workers=0.02 must be null, auto or a whole number"):
        settle(compose_once(["strategy=vertex_centric", "workers=${oc.env:LR}"]))


def test_every_optimizer_can_be_chosen() -> None:
    composed, names = compose_once(["strategy=vertex_centric"]), ["adam", "adamw", "sgd"]
    assert [settle(change_key(composed, "trainer.optimizer", name)).trainer.optimizer for name in names] == names


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_option_runs_with_its_own_values(compose_option: Callable[..., dict[str, Any]]) -> None:
    """So that what the other tests refuse is refused for the changed value."""
    for section, name in OPTIONS:
        run_settings = settle(compose_option(section, name))
        if (section, name) in (("launcher", "outside"), ("launcher", "submitit")):
            run_settings.launcher.create()  # no ranks were started, and no sweep is run
        else:
            check(Order(run_settings))


def test_every_job_has_its_facts_and_its_class() -> None:
    assert {name: plugins.load("job", name).name for name in plugins.names("job")} == {
        name: name for name in plugins.names("job")
    }


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Settles a configuration as on a machine with these GPUs and cores."""

    def settled(*overrides: str, gpus: int = 0, cores: int = 64, started: StartedRank | None = None) -> Settings:
        monkeypatch.setattr(ranks, "num_gpus", lambda: gpus)
        monkeypatch.setattr(ranks, "num_cores", lambda: cores)
        monkeypatch.setattr(environment, "started_rank", lambda: started)
        return settle(compose_once(["strategy=vertex_centric", *overrides]))

    return settled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "overrides", "expected"),
    [
        (0, [], (4, "gloo", 16)),
        (1, [], (4, "gloo", 16)),
        (8, [], (8, "nccl", 8)),
        (1, ["workers=1"], (1, "nccl", 64)),
        (2, ["workers=3"], (3, "gloo", 21)),
        (8, ["comm=threads"], (8, "threads", 8)),
        (0, ["workers=100"], (100, "gloo", 1)),
        (0, ["threads=3"], (4, "gloo", 3)),
    ],
)
def test_auto_takes_the_gpus_where_there_are_several(
    machine: Callable[..., Settings], gpus: int, overrides: list[str], expected: tuple[int, str, int]
) -> None:
    settings_of_run = machine(*overrides, gpus=gpus)
    assert (settings_of_run.workers, settings_of_run.comm.name, settings_of_run.threads) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "overrides", "counts", "last"),
    [
        (0, [], (1, 2, 4, 8, 16, 32, 64), ("gloo", 1)),
        (0, ["threads=5"], (1, 2, 4, 8, 12), ("gloo", 5)),
        (0, ["threads=100"], (1,), ("gloo", 100)),
        (1, [], (1,), ("nccl", 64)),
        (6, [], (1, 2, 4, 6), ("nccl", 10)),
        (6, ["comm=threads", "threads=16"], (1, 2, 4), ("threads", 16)),
        (6, ["sync=parameter_server", "sync.servers=2"], (1, 2, 4), ("nccl", 10)),
    ],
)
def test_workers_auto_chooses_up_to_the_gpus_or_the_cores(
    machine: Callable[..., Settings], gpus: int, overrides: list[str], counts: tuple[int, ...], last: tuple[str, int]
) -> None:
    settings_of_run = machine("workers=auto", *overrides, gpus=gpus)
    assert settings_of_run.auto_workers is not None
    assert settings_of_run.auto_workers.counts == counts
    assert settings_of_run.is_open
    full_settings = with_workers(settings_of_run, counts[-1])
    assert (full_settings.comm.name, full_settings.threads) == last
    named = machine(f"workers={counts[-1]}", *overrides, gpus=gpus)
    assert dataclasses.replace(full_settings, auto_workers=None) == named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["job=verify"], "workers=auto requires a job that trains: set a number for job=verify"),
        (["partition.grid=[2,2,1]"], "workers=auto: partition.grid=[2, 2, 1] fixes the number of workers"),
    ],
)
def test_workers_auto_is_refused_where_nothing_is_tried(overrides: list[str], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        settle(compose_once(["strategy=vertex_centric", "workers=auto", *overrides]))


def test_workers_auto_is_the_number_that_is_there(machine: Callable[..., Settings]) -> None:
    assert machine("workers=auto", started=StartedRank(5, 16, 1, 4)).auto_workers is None
    parts = machine("workers=auto", "parts=8", cores=4)
    assert (parts.processes, parts.auto_workers) == (4, None)


@pytest.mark.parametrize(
    ("gpus", "ranks_of_host", "expected"),
    [(8, 8, (16, "nccl", 8)), (4, 8, (16, "gloo", 8)), (1, 1, (16, "nccl", 64)), (0, 8, (16, "gloo", 8))],
)
def test_auto_counts_the_ranks_of_this_host_where_ranks_were_started(
    machine: Callable[..., Settings], gpus: int, ranks_of_host: int, expected: tuple[int, str, int]
) -> None:
    for rank in (0, 15):
        started = StartedRank(rank, 16, rank % ranks_of_host, ranks_of_host)
        found = machine(gpus=gpus, started=started)
        assert (found.workers, found.comm.name, found.threads) == expected
    with pytest.raises(UserError, match="workers=4 but 16 ranks were started"):
        machine("workers=4", gpus=gpus, started=started)


@pytest.mark.parametrize("name", ["SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU"])
def test_auto_takes_the_gpu_that_slurm_shows_to_each_task(
    machine: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    started = StartedRank(5, 16, 1, 4)
    assert machine(gpus=1, started=started).comm.name == "gloo"
    monkeypatch.setenv(name, "1")
    assert machine(gpus=1, started=started).comm.name == "gloo"  # of an allocation, without a step
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert machine(gpus=1, started=started).comm.name == "nccl"
    assert machine(gpus=0, started=started).comm.name == "gloo"
    assert [environment.gpu_of(3, visible) for visible in (1, 4)] == [0, 3]


@pytest.mark.slow
def test_one_gpu_that_stays_idle_is_mentioned_with_the_way_to_use_it(
    machine: Callable[..., Settings], runs: list[Settings], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = machine(gpus=1)
    assert found.notes == ("4 workers on CPUs, one GPU stays idle: use workers=1 or workers=auto",)
    start(Order(found, folder=tmp_path / "run"))
    assert found.notes[0] in capsys.readouterr().out.splitlines()[:2]
    for overrides, gpus in ((["workers=1"], 1), (["workers=4"], 1), (["workers=auto"], 1), ([], 0), ([], 2)):
        assert machine(*overrides, gpus=gpus).notes == ()


@pytest.mark.parametrize(("epochs", "between"), [(1, 1), (9, 1), (10, 1), (25, 2), (100, 10), (5000, 10)])
def test_a_run_is_evaluated_after_each_tenth_and_every_ten_epochs(epochs: int, between: int) -> None:
    composed = compose_once(["strategy=vertex_centric", f"trainer.max_epochs={epochs}"])
    assert settle(composed).trainer.check_val_every_n_epoch == between


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["init.minutes=9"], "init.minutes is read by job=init only: leave the key out"),
        (
            ["trainer.schedule=plateau", "trainer.monitor=null"],
            "trainer.schedule=plateau follows trainer.monitor, which is null: choose a metric",
        ),
        (
            ["trainer.schedule=plateau", "trainer.monitor=val_loss", "trainer.warmup_epochs=2"],
            "trainer.warmup_epochs=2: trainer.schedule=plateau has no warm-up: leave the key out",
        ),
        (
            ["trainer.monitor=null", "trainer.patience=3"],
            "trainer.patience=3 is read by trainer.monitor=NAME only: leave the key out",
        ),
        (["strategy=auto", "exchange=exact"], "exchange=exact: strategy=auto also chooses the exchange: leave it out"),
        (["job=compare", "compare.ways=3"], "compare.ways=3 must be a list of strategies: [NAME,'NAME KEY=VALUE']"),
        (["job=report", f"runs=[{','.join(map(str, ['x'] * 65))}]"], "runs has 65 folders, at most 64 are compared"),
        (
            ["job=report", "features.place=disk", "runs=a"],
            "features.place=disk is read by job=compare|explain|plan|predict|test|train|verify only: leave the key out",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused_with_what_to_change(arguments: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)):
        settle(compose_once([*([] if "strategy" in arguments[0] else ["strategy=vertex_centric"]), *arguments]))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model", 3, "model=3 must be one of: .*gcn"),
        ("sync", None, "sync=None must be one of: .*all_reduce"),
        ("model", {"hidden": 3}, "model is missing: the YAML that is chosen has no line name: NAME, there are: .*gcn"),
    ],
)
def test_a_section_without_a_name_is_refused_with_the_names_that_there_are(key: str, value: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        settle({**compose_once(["strategy=vertex_centric"]), key: value})


def key_rules_by_name() -> dict[str, KeyRule]:
    """Returns the rules of all keys outside plugins, by full name."""
    of_jobs = [plugins.load("job", name).keys for name in plugins.names("job")]
    rules = {rule.name: rule for kind in (Settings, *filter(None, of_jobs)) for rule in key_rules(kind)}
    for section in [rule for rule in rules.values() if rule.section is not None]:
        rules |= {f"{section.name}.{rule.name}": rule for rule in key_rules(section.section)}
    return rules


@pytest.mark.parametrize("key", keys.run_keys().values(), ids=lambda key: key.name)
def test_a_key_is_described_in_yaml_and_has_one_annotated_field(key: keys.Key) -> None:
    name = next(name for name, described in keys.run_keys().items() if described is key)
    if name in plugins.KINDS:
        return
    assert key.comment
    rule = key_rules_by_name()[name]
    assert rule.rule is not None or name == "trainer.monitor", "the task checks the name of a metric"
    if isinstance(rule.rule, functools.partial) and rule.rule.func is one_of and "|" in key.comment:
        assert set(of_comment(key)) <= {str(value) for value in rule.rule.keywords["choices"]}


def test_an_annotation_holds_rule_type_and_condition() -> None:
    rules = {rule.name: rule for rule in key_rules(TrainerSettings)}
    assert rules["lr"].rule is not None
    assert (rules["max_epochs"].nullable, rules["clip_norm"].nullable) == (False, True)
    assert (rules["lr"].takes_text, rules["resume"].takes_text, rules["precision"].takes_text) == (False, True, False)
    assert [condition.condition for condition in rules["patience"].conditions] == ["trainer.monitor=NAME"]
    assert rules["lr"].read("trainer.lr", 1) == 1
    assert rules["clip_norm"].read("trainer.clip_norm", None) is None
    with pytest.raises(UserError, match=r"^trainer.clip_norm=0 must be a number above 0$"):
        rules["clip_norm"].read("trainer.clip_norm", 0)


def test_a_leader_plugin_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = plugins.names
    monkeypatch.setattr(plugins, "names", lambda kind: [] if kind == "leader" else installed(kind))
    with pytest.raises(
        UserError,
        match=r"^leader\.rebalance=true: the package gnnkit-rebalancing is not installed: pip install gnnkit-rebalancing$",
    ):
        settle(config.compose(["strategy=vertex_centric", "leader.rebalance=true"]))
    assert settle(config.compose(["strategy=vertex_centric"])).leader.hooks == ()
