"""What holds for each job before it starts."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gnnkit import plugins
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.jobs import check, start
from gnnkit.jobs.job import Job, import_for_training
from gnnkit.jobs.order import Order
from tests.cases import few

NEEDED = {"report": ["runs=run"]}  # overrides without which a job does not start
WRONG = {  # overrides, and what is wrong
    ("model.hidden=abc",): "model.hidden=abc must be a whole number",
    ("model=gat", "model.heads=-7"): "model.heads=-7 must be a whole number from 1",
    ("sampler=neighbor", "sampler.fanouts=[x]"): r"sampler.fanouts\[0\]=x must be a whole number",
    ("sync=leader", "sync.mode=fast"): "sync.mode=fast must be",
    ("task=link_prediction", "task.loss=7"): "task.loss=7 must be text",
    ("strategy=individual_sample", "strategy.batch_size=abc"): "strategy.batch_size=abc must be a whole number",
}


def jobs_without_training() -> list[str]:
    """Lists the jobs that start without a trained run, and without training one."""
    jobs: dict[str, type[Job]] = {name: plugins.load("job", name) for name in plugins.names("job")}
    return [name for name, job in jobs.items() if not (job.trains or job.reads_checkpoint or name == "init")]


@pytest.mark.slow
@few("job", jobs_without_training(), default=["partition", "report"])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda overrides: overrides[-1].partition("=")[0])
def test_keys_of_plugins_are_checked_whether_or_not_a_job_reads_them(job: str, wrong: tuple[str, ...]) -> None:
    order = Order(settle(compose([f"job={job}", "dataset=synthetic", *NEEDED.get(job, ()), *wrong])))
    for call in (check, start):
        with pytest.raises(UserError, match=f"^{WRONG[wrong]}"):
            call(order)


@pytest.mark.parametrize("imported", [True, False])
def test_imports_for_training_are_optional(imported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimpleNamespace(module_available=None)
    monkeypatch.setattr("gnnkit.jobs.job._MODULES", ("no_such_module",))
    monkeypatch.setitem(sys.modules, "lightning.fabric.utilities.cloud_io", files)
    if not imported:
        del sys.modules["lightning.fabric.utilities.cloud_io"]
    import_for_training()
    assert (files.module_available == sys.modules.__contains__) == imported
