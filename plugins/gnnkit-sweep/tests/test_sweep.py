"""Sweeps: every job is checked first, runs alone, and has a row in the table."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from gnnkit_formats.npz import Npz
from gnnkit_report.runs_page import DONE, Sweep, SweptRun, means_table
from gnnkit_sweep import plans, submitit
from gnnkit_sweep.runner import FAILED

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.prepare import kept
from gnnkit.task.node_classification import NodeClassification
from tests.cases import few
from tests.conftest import Install
from tests.forked import forked
from tests.processes import in_folder
from tests.waiting import wait_until

SMALL = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200", "workers=2"]
QUICK = [*SMALL, "comm=threads", "trainer.max_epochs=1", "trainer.checkpoint=false"]
PLAIN = ["report=false", "logger=none"]  # of jobs whose page and loggers nobody reads
MEETING = """
import os, time
from pathlib import Path

from gnnkit.dataset.base import Dataset
from gnnkit_formats.synthetic import Synthetic

class Meeting(Dataset):
    def load(self):
        Path(f"began-{os.getpid()}").touch()
        end = time.monotonic() + 120
        while len(list(Path().glob("began-*"))) < 3:
            assert time.monotonic() < end, "a job waits for another"
            time.sleep(0.02)
        return Synthetic(num_nodes=60, num_edges=200).load()
"""
OPTUNA = ["hydra/sweeper=optuna", "hydra.sweeper.sampler.seed=1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return found


def sweep(*keys: str, code: int = 0) -> list[dict[str, Any]]:
    assert main(["-m", *QUICK, "hydra.sweep.dir=sweep", *keys]) == code
    return rows(Path("sweep"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_sweep_runs_every_combination_as_if_alone_and_shows_one_table(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [*QUICK, "logger=none"]
    assert main(["--multirun", *quick, "seed=range(2)", "partition=1d,2d"]) == 0
    (folder,) = here.glob("multirun/*/*")
    found = rows(folder)
    assert [row["swept"] for row in found] == [{"seed": s, "partition": p} for s in "01" for p in ("1d", "2d")]
    assert [(row["job"], row["status"], row["exit_code"]) for row in found] == [(i, "done", 0) for i in range(4)]
    for number, row in enumerate(found):
        result = json.loads((folder / str(number) / "result.json").read_text())
        assert (str(result["seed"]), result["partition"]) == (row["swept"]["seed"], row["swept"]["partition"])
        assert row["figures"]["train_loss"] == result["train_loss"]
        kept = yaml.safe_load((folder / str(number) / ".hydra/overrides.yaml").read_text())
        assert kept == row["overrides"] == [*quick, f"seed={result['seed']}", f"partition={result['partition']}"]
        assert "train_loss" in (folder / f"{number}.log").read_text()
    with (folder / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["partition"] for row in table] == ["1d", "2d", "1d", "2d"]
    assert [float(row["val_accuracy"]) for row in table] == [row["figures"]["val_accuracy"] for row in found]
    page = (folder / "report.html").read_text()
    assert "Sweep over seed, partition" in page
    assert "4 runs: 4 done." in page
    links = re.findall(r'href="(.*?)"', page)
    assert links == [f"{number}/report.html" for number in range(4)]
    assert all((folder / link).is_file() for link in links)
    out = capsys.readouterr().out
    assert "run  seed  partition  val_accuracy" in out
    assert re.search(r"\n *partition +runs +val_accuracy .*\n +[12]d +2 ", out)
    assert "4 of 4 jobs done" in out
    assert main([*QUICK, *PLAIN, "seed=1", "partition=2d", "output=alone"]) == 0
    alone = json.loads(Path("alone/result.json").read_text())
    assert alone["train_loss"] == found[3]["figures"]["train_loss"] != found[1]["figures"]["train_loss"]
    assert np.array_equal(*(np.load(path / "predictions.npy") for path in (here / "alone", folder / "3")))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_job_that_fails_does_not_stop_the_others(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "bad.npz").write_bytes(b"no archive")
    keys = [key for key in [*QUICK, *PLAIN] if "dataset" not in key]
    _write_graph(here / "good.npz")
    roots = "dataset.root=bad.npz,good.npz"
    assert main(["-m", *keys, "dataset=npz", roots, "hydra.sweep.dir=sweep"]) == 1
    bad, good = rows(here / "sweep")
    assert (bad["status"], bad["exit_code"], bad["figures"]) == ("failed", 2, {})
    assert bad["error"].startswith("dataset.root=bad.npz")
    assert (good["status"], good["exit_code"]) == ("done", 0)
    out, err = capfd.readouterr()
    assert re.search("failed +dataset.root=bad.npz", out)
    assert "gnnkit: error: dataset.root=bad.npz" in err, "errors of a job are seen at once"
    assert "1 of 2 jobs done" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["model.hidden=8,-4"], "model.hidden=-4 must be"),
        (["seed=1,2", "trainer.lr=choice(0.1,fast)"], "trainer.lr=fast must be a number"),
        (["seed=range(3)", "modle=gcn"], "modle is not known"),
        (["trainer.lr=interval(0,1)"], "trainer.lr=interval(0,1) needs hydra/sweeper=optuna"),
        (["seed=range(100001)"], "the sweep has 10,001 jobs or more"),
        (["seed=range(200)", "workers=range(1,200)"], "the sweep has 39,800 jobs or more"),
        (["seed=1,2", "seed=3,4"], "seed is swept twice"),
        (["seed=range(3,3)"], "seed=range(3,3) has no value"),
        (["seed=1,2", "output=x"], "output applies to a single run"),
        (["seed=1,2", "hydra.run.dir=x"], "hydra.run.dir=x is of one run"),
        (["seed=1,2", "hydra.sweep.subdir=same"], "hydra.sweep.subdir gives two jobs the folder"),
        (["seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=0"], "hydra.launcher.n_jobs=0 must be"),
        (["seed=1,2", "hydra/launcher=ray"], "hydra/launcher=ray is not known"),
        (["seed=1,2", "hydra.launcher.n_jobs=2"], "hydra.launcher.n_jobs cannot be changed"),
        (["seed=1,2", "hydra.launcher._target_=os.mkdir"], "hydra.launcher._target_ cannot be changed"),
        (["seed=1,2", "+hydra.callbacks.x=1"], "+hydra.callbacks.x cannot be changed"),
        (["seed=1,2", "hydra.sweep.dir=a,b"], "hydra.sweep.dir=a,b: a Hydra setting has one value per sweep"),
        (["seed=1,2", "upload=s3://a/b"], "upload applies to a single run: remove it, and copy the sweep"),
        (["seed=1,2", "hydra.sweep.dir=${eval:1}"], "override 'hydra.sweep.dir=${eval:1}': resolvers other than"),
        ([*OPTUNA, "seed=1"], "hydra/sweeper=optuna has nothing to search"),
        ([*OPTUNA, "seed=1,2", "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials=0 must be"),
        ([*OPTUNA, "seed=1,2", "hydra.sweeper.direction=up"], "hydra.sweeper.direction=up is not known"),
        ([*OPTUNA, "seed=1,2", "hydra.sweeper.metric=accuracy"], "hydra.sweeper.metric=accuracy is not known"),
        ([*OPTUNA, "model.hidden=int(interval(8,2000000))"], "model.hidden=2000000 must be"),
        ([*OPTUNA, "trainer.lr=tag(log,interval(0,1))"], "trainer.lr=tag(log,interval(0,1)): interval(low,high) needs"),
        ([*OPTUNA, "trainer.lr=tag(exp,interval(0,1))"], "trainer.lr=tag(exp,interval(0,1)): unknown tag exp"),
        ([*OPTUNA, "seed=1,2", "job=partition"], "hydra/sweeper=optuna compares trained models"),
    ],
)  # fmt: skip
def test_a_sweep_that_is_wrong_starts_nothing(
    keys: list[str], expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", *[key for key in QUICK if "workers" not in key], *keys]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"gnnkit: error: {expected}"), err
    assert (out, err.count("\n")) == ("", 1)
    assert not list(here.glob("multirun/*/*/*")), "no job has started"


@pytest.mark.slow
def test_settings_of_a_sweep_need_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("hydra.sweep.dir=x", "hydra/sweeper=optuna", "hydra/launcher=joblib"):
        assert main([*QUICK, text]) == 2
        assert f"{text} applies to sweeps only: add -m" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.exhaustive
def test_folders_of_a_sweep_have_the_names_that_were_asked_for(here: Path) -> None:
    keys = [
        "hydra.sweep.dir=${oc.env:SWEEPS,sweeps}/${now:%Y}",
        "hydra.sweep.subdir=${hydra.job.num}-${model.name}-${seed}",
    ]
    assert main(["-m", *QUICK, *keys, "job=partition", "model=gcn,sage", "seed=7"]) == 0
    (folder,) = (here / "sweeps").iterdir()
    assert folder.name == time.strftime("%Y")
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"0-gcn-7", "1-sage-7"}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_jobs_share_what_one_of_them_has_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "WORTH", -1.0)
    sweep("seed=range(2)", "cache=cache", *PLAIN)
    logs = [Path(f"sweep/{number}.log").read_text() for number in range(2)]
    uses = ["made by an earlier run" in log for log in logs]
    assert uses == [False, True]


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was_left(capsys: pytest.CaptureFixture[str]) -> None:
    sweep("seed=1,2", "on_exists=resume", *PLAIN)
    before = Path("sweep/0/result.json").stat().st_mtime_ns
    Path("sweep/1/result.json").unlink()
    assert main(["-m", *QUICK, "hydra.sweep.dir=sweep", "seed=1,2"]) == 2
    assert "holds a sweep: choose another folder" in capsys.readouterr().err
    assert [row["status"] for row in sweep("seed=1,2", "on_exists=resume", *PLAIN)] == ["done", "done"]
    assert Path("sweep/0/result.json").stat().st_mtime_ns == before
    assert Path("sweep/1/result.json").exists()
    assert "seed=1: done before val_accuracy" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive
def test_jobs_run_at_once_with_the_launcher_joblib(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until all have begun."""
    site = install("meeting", {"gnnkit.dataset": {"meeting": "meeting:Meeting"}}, {"meeting.py": MEETING})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    keys = [key for key in QUICK if "dataset" not in key]
    jobs = ["seed=range(3)", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3"]
    assert main(["-m", *keys, *PLAIN, *jobs, "dataset=meeting", "cache=false", "hydra.sweep.dir=sweep"]) == 0
    found = rows(Path("sweep"))
    assert [row["status"] for row in found] == ["done"] * 3
    assert [row["figures"]["seed"] for row in found] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_optuna_chooses_from_every_kind_of_space(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    spaces = ["trainer.lr=tag(log,interval(1e-4,1e-1))", "model.hidden=range(4,17,4)", "model=choice(gcn,sage)",
              "model.dropout=range(0,0.5,0.25)", "seed=int(interval(3,9))"]  # fmt: skip
    found = sweep(*OPTUNA, *spaces, "hydra.sweeper.n_trials=2", *PLAIN)
    for row in found:
        values = row["swept"]
        assert 1e-4 <= float(values["trainer.lr"]) <= 1e-1
        assert values["model.hidden"] in ("4", "8", "12", "16")
        assert values["model"] in ("gcn", "sage")
        assert values["model.dropout"] in ("0.0", "0.25")
        assert values["seed"] in map(str, range(3, 10))
    best = max(found, key=lambda row: row["figures"]["val_accuracy"])
    told = yaml.safe_load(Path("sweep/optimization_results.yaml").read_text())
    assert told["best_evaluated_value"] == best["figures"]["val_accuracy"]
    assert "best val_accuracy" in capsys.readouterr().out
    assert main(["-m", *QUICK, *PLAIN, "hydra.sweep.dir=again", *OPTUNA, *spaces, "hydra.sweeper.n_trials=1"]) == 0
    assert [row["swept"] for row in rows(Path("again"))] == [row["swept"] for row in found[:1]]


@pytest.mark.slow
def test_optuna_minimises_a_loss_and_leaves_out_jobs_that_fail(here: Path) -> None:
    pytest.importorskip("optuna")
    (here / "bad.npz").write_bytes(b"no archive")
    _write_graph(here / "good.npz")
    keys = [key for key in [*QUICK, *PLAIN] if "dataset" not in key]
    keys += [
        "dataset=npz",
        "dataset.root=bad.npz,good.npz",
        "hydra.sweeper.metric=train_loss",
        "hydra.sweeper.n_trials=4",
    ]
    sampler = ["hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=0"]
    main(["-m", *keys, *sampler, "hydra.sweeper.n_jobs=2", "hydra/launcher=joblib", "hydra.sweep.dir=sweep"])
    found = rows(here / "sweep")
    assert {row["status"] for row in found} == {"done", "failed"}
    told = yaml.safe_load(Path("sweep/optimization_results.yaml").read_text())
    assert told["best_evaluated_value"] == min(row["figures"].get("train_loss", np.inf) for row in found)


@pytest.mark.parametrize(
    ("package", "key"), [("optuna", "hydra/sweeper=optuna"), ("submitit", "hydra/launcher=submitit_local")]
)
def test_a_package_that_is_not_installed_is_named(
    package: str, key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["-m", *QUICK, key, "seed=1,2"]) == 2
    assert (
        capsys.readouterr().err
        == f"gnnkit: error: {key} needs the package {package}: pip install 'gnnkit[{package}]'\n"
    )


@pytest.fixture
def interpreter(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets submitit start a script that writes its arguments, instead of gnnkit."""
    pytest.importorskip("submitit")
    script = here / "interpreter"
    script.write_text(f'#!/bin/sh\necho "asked for: $* " >> {here}/commands\n')
    script.chmod(0o755)
    monkeypatch.setattr(submitit, "sys", SimpleNamespace(executable=str(script)))
    monkeypatch.setattr(submitit, "POLL", 0.02)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("interpreter")
def test_submitit_gets_the_command_of_each_job() -> None:
    found = sweep("job=partition", "partition=1d,2d", "hydra/launcher=submitit_local", "hydra.launcher.timeout_min=2")
    assert [row["exit_code"] for row in found] == [0, 0]
    commands = sorted(Path("commands").read_text().splitlines())
    for command, partition in zip(commands, ("1d", "2d"), strict=True):
        assert command.startswith("asked for: -m gnnkit strategy=vertex_centric ")
        assert f" job=partition partition={partition} " in command


@pytest.mark.slow
@pytest.mark.exhaustive
def test_submitit_runs_jobs_on_this_machine() -> None:
    pytest.importorskip("submitit")
    found = sweep("job=partition", "partition=1d,2d", "hydra/launcher=submitit_local", "hydra.launcher.timeout_min=2")
    assert [row["status"] for row in found] == ["done", "done"]
    assert "contiguous nodes on a 2 x 1" in Path("sweep/0.log").read_text()


SLURM = {
    # Runs each task of the array at once, as SLURM would with free nodes.
    "sbatch": """#!/bin/bash
tasks=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1"); log=$(sed -n 's/^#SBATCH --output=//p' "$1")
grep '^#SBATCH' "$1" > "$SLURM_FAKE/asked"
cp "$1" "$SLURM_FAKE/script" # as submitit renames its own once sbatch has ended
for t in $(seq 0 ${tasks:-0}); do
    ( export SLURM_JOB_ID=7_$t SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$t SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 \\
        SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=localhost; bash "$SLURM_FAKE/script"; touch "$SLURM_FAKE/$t" ) >/dev/null 2>&1 &
done
echo "Submitted batch job 7"
""",
    "srun": """#!/bin/bash
while [[ "$1" == -* ]]; do [[ "$1" == --output || "$1" == --error ]] && shift; shift; done
export SLURM_STEP_ID=0; exec "$@"
""",
    "sacct": """#!/bin/bash
echo "JobID|State|NodeList"
for t in 0 1; do [ -e "$SLURM_FAKE/$t" ] && echo "7_$t|COMPLETED|localhost" || echo "7_$t|RUNNING|localhost"; done
""",
    "scancel": "#!/bin/bash\n",
    "scontrol": "#!/bin/bash\necho localhost\n",
}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("interpreter")
def test_submitit_hands_jobs_to_slurm(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SLURM.items():
        (here / "bin").mkdir(exist_ok=True)
        (here / "bin" / name).write_text(text)
        (here / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_FAKE", str(here))
    keys = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=short", "hydra.launcher.timeout_min=2"]
    found = sweep("job=partition", "seed=1,2", *keys)
    assert [row["exit_code"] for row in found] == [0, 0]
    assert all(f" job=partition seed={seed} " in Path("commands").read_text() for seed in (1, 2))
    assert "#SBATCH --partition=short" in (here / "asked").read_text()


@pytest.mark.slow
@pytest.mark.exhaustive
@few("number", [signal.SIGINT, signal.SIGTERM], default=[signal.SIGINT])
def test_a_sweep_that_is_ended_shows_the_table_so_far(number: signal.Signals, here: Path) -> None:
    keys = [
        *SMALL,
        *PLAIN,
        "trainer.max_epochs=1,1000000",
        "seed=1",
        "hydra.sweep.dir=sweep",
        "trainer.checkpoint=false",
    ]
    with forked(lambda: sys.exit(main(["-m", *keys])), here) as program:
        wait_until(
            lambda: "epoch" in _text(here / "sweep/1.log") or (here / "sweep/1/workers.jsonl").exists(),
            alive=lambda: program.poll() is None,
        )
        os.kill(program.pid, number)
        code, out = program.ended()
    assert code == 128 + number, out
    assert [row["status"] for row in rows(here / "sweep")] == ["done", "not finished"]
    assert "1 of 2 jobs done" in out
    wait_until(lambda: all(process.pid == os.getpid() for process in in_folder(here)))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _write_graph(path: Path) -> None:
    rng = np.random.default_rng(0)
    indptr = np.arange(0, 61 * 3, 3)
    masks = {f"{name}_mask": np.arange(60) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    dense = rng.normal(size=(60, 5)).astype(np.float32)
    np.savez(path, indptr=indptr, indices=rng.integers(0, 60, 180), x=dense, y=rng.integers(0, 3, 60), **masks)
    assert Npz(root=str(path)).load().num_nodes == 60


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_core")
def test_an_experiment_reaches_the_published_accuracy(data_folder: Path) -> None:
    keys = [
        "experiment=cora_gcn",
        f"dataset.root='{data_folder / 'cora.npz'}'",
        "workers=1",
        "trainer.checkpoint=false",
        *PLAIN,
    ]
    assert main(["-m", *keys, "seed=0", "trainer.check_val_every_n_epoch=50", "hydra.sweep.dir=sweep"]) == 0
    assert rows(Path("sweep"))[0]["figures"]["test_accuracy"] == pytest.approx(0.815, abs=0.02)


def ended(number: int, swept: dict[str, str], status: str = DONE, **figures: Any) -> SweptRun:
    return SweptRun(number, status, swept, figures, Path(f"{number}"), Path(f"{number}.log"))


def test_means_over_seeds_are_of_jobs_that_ended_and_have_the_figure() -> None:
    jobs = [
        ended(0, {"seed": "1"}, train_loss=0.5, val_accuracy=0.25),
        ended(1, {"seed": "2"}, train_loss=0.7),
        ended(2, {"seed": "3"}, FAILED, train_loss=9.0),
    ]
    means = means_table(Sweep(jobs, "val_accuracy", False))
    assert means is not None
    assert means.aligned().splitlines() == [
        "  all  runs  val_accuracy  train_loss",
        "seeds     2          0.25  0.6 ± 0.14",
    ]


def search(**keys: Any) -> plans.OptunaSearch:
    usual = {"n_trials": 2, "n_jobs": 1, "metric": "auto", "direction": "auto", "storage": None, "study_name": None}
    given = {**usual, "sampler.seed": 1, "sampler.name": "random", **keys}
    return plans.OptunaSearch(["trainer.lr=interval(0.1,1)"], given, NodeClassification())


@pytest.mark.slow
def test_a_search_goes_the_way_that_is_asked_for_and_knows_no_best_without_a_figure() -> None:
    assert search().goal([], NodeClassification()) == ("val_accuracy", False)
    assert search(metric="train_loss").goal([], NodeClassification()) == ("train_loss", True)
    found = search(metric="train_loss", direction="maximize")
    assert found.goal([], NodeClassification()) == ("train_loss", False)
    list(found.batches())
    found.tell(ended(0, {}, FAILED))
    assert found.best() is None


@pytest.mark.parametrize("key", ["storage", "study_name"])
def test_names_of_a_study_are_text(key: str) -> None:
    with pytest.raises(UserError, match=rf"hydra\.sweeper\.{key}=3 must be text"):
        search(**{key: 3})
