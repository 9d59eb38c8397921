"""The command line's jobs, with their inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job's properties."""

    name: str
    trains: bool = False  # writes trained models and a report, and supports loggers and callbacks
    several: bool = False  # consists of several runs, each in a subfolder
    reads_checkpoint: bool = False  # requires a trained run
    reads_nodes: bool = False  # reads the key `nodes`, and the complete graph on one worker
    reads_strategy: bool = True
    reads_plan: bool = False  # always reads the section `plan`
    reads_runs: bool = False
    reads_data_only: bool = False  # reads no section except `dataset`
    needs_labels: bool = True
    splits: tuple[str, ...] = ("train",)  # one of these must contain a node, if labels are needed
    reads_memory: bool = False  # reads the key `memory`
    reads_rows: bool = False  # reads feature rows for a model
    goes_on: bool = False  # resumes an interrupted job of the same kind in the run folder
    one_run: bool = True  # is a single run with its own folder
    cuts: bool = False  # repartitions graphs, including stored ones
    keeps_inputs: bool = False  # saves how the data's columns are read, for later runs

    def __str__(self) -> str:
        return self.name


JOBS = {
    facts.name: facts
    for facts in (
        JobFacts("train", trains=True, reads_rows=True, keeps_inputs=True),
        JobFacts("verify", reads_rows=True),
        JobFacts("plan", reads_plan=True, reads_rows=True),
        JobFacts("partition", reads_strategy=False, keeps_inputs=True, cuts=True),
        JobFacts("import", reads_strategy=False, reads_memory=True, goes_on=True, keeps_inputs=True, cuts=True),
        JobFacts("predict", reads_checkpoint=True, reads_rows=True, needs_labels=False),
        JobFacts("test", reads_checkpoint=True, reads_rows=True, splits=("val", "test")),
        JobFacts("explain", reads_checkpoint=True, reads_nodes=True, reads_rows=True, needs_labels=False),
        JobFacts("compare", trains=True, several=True, reads_strategy=False, reads_rows=True, one_run=False),
        JobFacts("report", reads_strategy=False, reads_runs=True, one_run=False),
        JobFacts("init", reads_strategy=False, reads_data_only=True, one_run=False),
    )
}
