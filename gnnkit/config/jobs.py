"""The jobs of the command line, and what each reads and leaves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the rest of the package asks about a job."""

    name: str
    trains: bool = False  # leaves trained models, and a report. May have loggers and callbacks
    several: bool = False  # is several runs, each in a folder below the job's
    reads_checkpoint: bool = False  # of a run that has trained
    reads_strategy: bool = True
    reads_plan: bool = False  # the section `plan`, whatever else is chosen
    reads_runs: bool = False
    reads_data_only: bool = False  # no section but `dataset`
    needs_labels: bool = True
    splits: tuple[str, ...] = ("train",)  # with labels, a node of one of these is needed
    reads_memory: bool = False  # the key `memory`
    reads_rows: bool = False  # of features, which models compute with
    goes_on: bool = False  # from what the same job has left in the run folder when it was interrupted
    one_run: bool = True  # is one run, in a folder of its own
    cuts: bool = False  # graphs anew, also those of stores
    keeps_inputs: bool = False  # leaves what later runs must know of the columns of the data

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
        JobFacts("compare", trains=True, several=True, reads_strategy=False, reads_rows=True, one_run=False),
        JobFacts("report", reads_strategy=False, reads_runs=True, one_run=False),
        JobFacts("init", reads_strategy=False, reads_data_only=True, one_run=False),
    )
}
