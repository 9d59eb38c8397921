"""The table of combinations that are refused: each row refuses a real configuration."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gnnkit import config
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.jobs import Order, check, fits

FULL, SAMPLED, PRESET = (f"strategy={name}" for name in ("vertex_centric", "individual_sample", "preset_workload"))
PROGRAM = [FULL, "model=pagerank"]
LEARNED, LOST = "inputs=learned", "sync.on_lost=continue"
SERVERS, ASYNC, LEADER = "sync=parameter_server", "sync.mode=async", "sync=leader"
LINKS, TRAINED = "task=link_prediction", "checkpoint=RUN"
OF_EDGES = "a module of (x, edge_index)"  # takes the place of the configured model
STRICT = ["sampler=neighbor", "sampler.time=strict"]
ON_DISK, LABELS = "features.place=disk", "label_inputs=0.5"
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "x",
}
# One for each row, in the order of the table.
REFUSED = [
    [SAMPLED, SERVERS, ASYNC, "trainer.monitor=train_loss"],
    [FULL, "trainer.checkpoint_every_minutes=5", "trainer.checkpoint=false"],
    [SAMPLED, SERVERS, ASYNC, "trainer.checkpoint_every_minutes=5"],
    [SAMPLED, SERVERS, "sync.servers=1", "trainer.clip_norm=1.0"],
    [*PROGRAM, "job=predict", TRAINED],
    [SAMPLED, "model=pagerank"],
    [*PROGRAM, LINKS],
    [*PROGRAM, "trainer.resume=RUN"],
    [*PROGRAM, SERVERS, "sync.servers=1"],
    [*PROGRAM, "profile=true"],
    [*PROGRAM, "inputs=degree"],
    [FULL, "sampler=neighbor"],
    [SAMPLED, "partition=2d"],
    [SAMPLED, "order=rcm"],
    [FULL, "strategy.local_iterations=4", SERVERS, ASYNC],
    [PRESET, "model=rgcn", "strategy.options.degrees=local"],
    [SAMPLED, "model=rgcn", "sampler=metropolis_hastings"],
    [SAMPLED, "model=gcn", "sampler=neighbor", "sampler.fanouts={default:[5,5],cites:[1,1]}"],
    [FULL, "model=rgcn", "types=ignore"],
    [FULL, "types=ignore", "job=predict", TRAINED],
    [SAMPLED, LINKS, "task.top_k=null", "job=predict", TRAINED],
    [FULL, "write=[vectors]"],
    [SAMPLED, LINKS, "write=[probabilities]"],
    [FULL, "trainer.accumulate=2"],
    [PRESET, "strategy.average=parameters", "trainer.accumulate=2"],
    [SAMPLED, SERVERS, ASYNC, "trainer.accumulate=2"],
    [SAMPLED, LEARNED, "trainer.accumulate=2"],
    [SAMPLED, "model=gine", "input_rows=sparse"],
    [SAMPLED, "features.dtype=bf16", "input_rows=sparse"],
    [SAMPLED, "features.dtype=int8", "sampler=metropolis_hastings", "sampler.target=similarity"],
    ["strategy=llcg", "features.place=memory"],
    [FULL, "features.place=mapped"],
    [FULL, ON_DISK, "model=gine"],
    [FULL, ON_DISK, LABELS],
    [FULL, ON_DISK, "job=plan"],
    [SAMPLED, ON_DISK, "sampler=metropolis_hastings", "sampler.target=similarity"],
    [SAMPLED, ON_DISK, "trainer.precision=bf16-mixed"],
    [SAMPLED, ON_DISK, "strategy.features=partitioned", "strategy.cache=lru"],
    [FULL, LEARNED, "job=plan"],
    [PRESET, LEARNED],
    [SAMPLED, LEARNED, SERVERS, ASYNC],
    [SAMPLED, LEARNED, LEADER, LOST],
    [*PROGRAM, LABELS],
    [FULL, "task=regression", LABELS],
    [PRESET, LABELS],
    [SAMPLED, SERVERS, ASYNC, LABELS],
    [SAMPLED, "trainer.accumulate=4", LABELS],
    [SAMPLED, *STRICT, "strategy.options.batching=balanced"],
    [SAMPLED, *STRICT, "task=edge_classification", "write=[embeddings]"],
    [SAMPLED, *STRICT, "inputs=degree"],
    [SAMPLED, *STRICT, "features.degree=true"],
    [SAMPLED, *STRICT, LABELS],
    [SAMPLED, "model=tgat"],
    [FULL, "model=column", "features.scale=row"],
    [FULL, "task=link_prediction", "features.degree=true"],
    [SAMPLED, LOST, LEADER, "strategy.features=partitioned"],
    [FULL, LOST, LEADER],
    [SAMPLED, LOST, LEADER, OF_EDGES],
    [SAMPLED, LOST, LEADER, LINKS],
    [SAMPLED, LOST, LEADER, "comm=threads"],
    [SAMPLED, LOST, LEADER, "comm=gloo", "write_by=columns"],
    [SAMPLED, LOST, LEADER, "comm=gloo", "ENVIRONMENT"],
    [FULL, "restarts=1", "ENVIRONMENT"],
    [FULL, "restarts=1", "launcher=inline"],
    [SAMPLED, "restarts=1", LEADER, LOST],
    [FULL, "restarts=1", "profile=true"],
]
ROWS = [message for topic in fits.TOPICS for message in topic.conflicts]


class EdgeSum(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


@pytest.mark.slow
@pytest.mark.parametrize(("message", "overrides"), list(zip(ROWS, REFUSED, strict=True)), ids=map(" ".join, REFUSED))
def test_each_row_refuses_a_configuration(
    message: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overrides[-1] == "ENVIRONMENT":
        for name, value in TORCHRUN.items():
            monkeypatch.setenv(name, value)
        overrides = overrides[:-1]
    models = {OF_EDGES: EdgeSum()}
    model = next((models[text] for text in overrides if text in models), None)
    plain = config.compose([text.replace("RUN", str(tmp_path)) for text in overrides if text not in models])
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    pattern = ".*".join(map(re.escape, re.split(r"\{.*?\}", message)))
    with pytest.raises(UserError, match=f"^{pattern}$"):
        check(Order(settle(plain), model=model))


@pytest.mark.parametrize(
    ("overrides", "fanouts"),
    [
        (["model.num_layers=1"], [15]),
        (["model.num_layers=3", "sampler=labor"], [15, 10, 10]),
        (["model=simple_hgn"], [15, 10, 10]),
        (["model.num_layers=2"], [15, 10]),
    ],
)
def test_default_fanouts_have_a_hop_for_each_layer(
    overrides: list[str], fanouts: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = [SAMPLED, *overrides]
    order = check(Order(settle(config.compose(overrides)), overrides=overrides))
    assert order.settings.sampler is not None
    assert order.settings.sampler.arguments["fanouts"] == fanouts
    assert ("one hop for each of the model's" in capfd.readouterr().out) == (len(fanouts) != 2)
    overrides = [*overrides, "sampler.fanouts=[5,5,5,5]"]
    with pytest.raises(UserError, match=r"sampler\.fanouts has 4 hops, but model\.num_layers="):
        check(Order(settle(config.compose(overrides)), overrides=overrides))


def test_a_sampler_of_all_neighbours_has_a_hop_for_each_layer() -> None:
    for layers in (1, 3):
        overrides = [SAMPLED, "sampler=full", f"model.num_layers={layers}"]
        sampler = check(Order(settle(config.compose(overrides)), overrides=overrides)).settings.sampler
        assert sampler is not None
        assert sampler.create().num_hops == layers
