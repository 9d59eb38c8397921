"""Modules that a run does not use come when somebody asks for them."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.launch import lean
from tests.cases import few
from tests.launch.outside import Outside

pytestmark = pytest.mark.slow  # imports the compiler

BEGIN = """
import sys
import lightning, torch
import scipy.signal
from gnnkit.launch import lean
from lightning.pytorch.utilities.compile import OptimizedModule
model = torch.nn.Linear(3, 3)
x = torch.ones(2, 3)
assert isinstance(sys.modules["torch._dynamo"], lean.Placeholder)
assert isinstance(sys.modules["scipy.signal"], lean.Placeholder)
assert not isinstance(model, OptimizedModule)
"""
CASES = {
    "steps of an optimiser need no compiler": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
before = model.weight.detach().clone()
model(x).sum().backward()
optimizer.step()
optimizer.zero_grad()
assert not torch.equal(before, model.weight)
assert not {"sympy", "torch._dynamo.eval_frame", "scipy.optimize"} & set(sys.modules)
""",
    "a submodule is imported once, a name that nobody has is an error, and a compiled model is one": """
from torch._dynamo.utils import counters
import torch._dynamo.eval_frame as frame
assert torch._dynamo.utils.counters is counters
assert torch._dynamo.OptimizedModule is frame.OptimizedModule is sys.modules["torch._dynamo"].OptimizedModule
assert frame.__spec__.loader is not None and frame.__spec__.origin == frame.__file__
assert not isinstance(sys.modules["torch._dynamo"], lean.Placeholder)
try:
    torch._dynamo.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
else:
    raise AssertionError
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend="eager")
assert isinstance(compiled, OptimizedModule)
assert torch.equal(compiled(x), model(x))
compiled(x).sum().backward()
optimizer.step()
""",
    "the signals of SciPy are the real ones": """
assert len(scipy.signal.windows.hann(5)) == 5
assert not isinstance(sys.modules["scipy.signal"], lean.Placeholder)
from scipy.signal.windows import hamming
assert scipy.signal.windows.hamming is hamming
""",
    "columns are computed": """
import pyarrow.compute
assert pyarrow.compute.sum([1, 2]).as_py() == 3
assert not isinstance(sys.modules["pyarrow.compute"], lean.Placeholder)
""",
    "operations are counted": """
from torch.utils.flop_counter import FlopCounterMode
assert isinstance(sys.modules["torch.utils.flop_counter"], lean.Placeholder)
with FlopCounterMode(display=False) as counter:
    model(x)
assert counter.get_total_flops() == 2 * 2 * 3 * 3
""",
}
EXHAUSTIVE = {
    "threads that ask at once get one module, and a known function is the real one afterwards": """
from concurrent.futures import ThreadPoolExecutor
early = torch._dynamo.disable(lambda: torch.compiler.is_compiling())
held = sys.modules["torch._dynamo"]
assert held.utils.get_optimize_ddp_mode() == "ddp_optimizer"
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda name: getattr(held, name), ["optimize", "export", "reset", "optimize"]))
assert found[0] is found[3] is torch._dynamo.optimize
assert held.disable is torch._dynamo.disable and held.utils is torch._dynamo.utils
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
compiled = torch.compile(lambda x: (x + 1, early()), backend="eager")
assert compiled(x)[1] is False
""",
}


@few("cases", [pytest.param(CASES, id="usual"), pytest.param(EXHAUSTIVE, id="more")], default=["usual"])
def test_the_modules_themselves_come_when_asked_for(outside: Outside, tmp_path: Path, cases: dict[str, str]) -> None:
    """Each case is a fork of a process that has imported what ranks import."""
    exits = outside.run(tmp_path, [["-c", BEGIN + case] for case in cases.values()], [{}] * len(cases))
    failed = {name: each.output for name, each in zip(cases, exits, strict=True) if each.code}
    assert failed == {}


def test_a_function_is_kept_from_the_compiler_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "_modules", {})
    functions = [lean.disable(int), lean.disable(recursive=False)(int)]
    assert [each("7") for each in functions] == [7, 7]
    disable = {True: lambda call: call + 1, False: lambda call: call + 2}
    compiler: Any = SimpleNamespace(disable=lambda function, recursive: lambda text: disable[recursive](function(text)))
    lean._modules[lean.COMPILER] = compiler
    assert [each("7") for each in functions] == [8, 9]


@pytest.mark.parametrize("installed", [True, False])
def test_only_installed_modules_have_placeholders(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:
        (tmp_path / "boto3.py").write_text("__version__ = '7'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(lean, "_modules", {})
    monkeypatch.setitem(sys.modules, "boto3", None)  # restored afterwards
    del sys.modules["boto3"]
    sys.meta_path.insert(0, lean._Finder())
    assert (importlib.util.find_spec("boto3") is not None) == installed
    if not installed:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("boto3")
        return
    module = importlib.import_module("boto3")
    assert isinstance(module, lean.Placeholder)
    assert not hasattr(module, "__file__")
    assert lean.find_imported("boto3") is None
    assert module.__version__ == "7"
    assert lean.find_imported("boto3") is sys.modules["boto3"] is not module


def test_stand_ins_come_before_the_checks_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(lean, "leave_out_unused", lambda: calls.append(True))
    with pytest.raises(UserError):
        gnnkit.train(strategy="vertex")
    assert calls == [True]


@pytest.mark.exhaustive
def test_the_command_trains_without_the_compiler_and_a_model_may_compile(tmp_path: Path) -> None:
    """The model compiles from its second step on."""
    code = """
import sys, torch
from gnnkit.model.gcn import GCN
class Model(GCN):
    steps = 0
    def layer(self, index, x, adjacency):
        self.steps += self.training and index == 0
        print("step", self.steps, "compiler", "torch._dynamo.eval_frame" in sys.modules, flush=True)
        out = super().layer(index, x, adjacency)
        if self.steps < 2:
            return out
        compiled = torch.compile(torch.neg, backend="eager")(out)
        assert torch.equal(compiled, -out)
        return compiled
"""
    (tmp_path / "own_model.py").write_text(code)
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gnnkit.model]\nown = own_model:Model\n")
    keys = ["strategy=vertex_centric", "workers=2", "threads=1", "comm=gloo", "dataset=synthetic", "model=own"]
    keys += ["dataset.num_nodes=50", "dataset.num_edges=99", "trainer.max_epochs=2", "report=false", "logger=none"]
    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from gnnkit.__main__ import program; program()"
    overrides = [*keys, f"output={tmp_path}/run"]
    done = subprocess.run([sys.executable, "-c", command, *overrides], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "step 1 compiler True" not in done.stdout
    assert done.stdout.count("step 2 compiler False") == 2, "each rank has done a step, and meets the first layer"
    assert "step 2 compiler True" in done.stdout


@pytest.mark.exhaustive
def test_python_trains_without_the_compiler_and_may_compile_afterwards(tmp_path: Path) -> None:
    """The caller has imported torch, as most do."""
    code = """
import sys, torch
import gnnkit
keys = dict(workers=1, threads=1, trainer={"max_epochs": 2}, report=False, logger=None)
data = dict(name="synthetic", num_nodes=50, num_edges=99)
for folder in ("a", "b"):
    gnnkit.train(strategy="vertex_centric", dataset=data, folder=f"{sys.argv[1]}/{folder}", **keys)
    assert not {"sympy", "torch._dynamo.eval_frame"} & set(sys.modules), folder
compiled = torch.compile(torch.nn.Linear(3, 3), backend="eager")
assert compiled(torch.ones(2, 3)).shape == (2, 3)
assert "torch._dynamo.eval_frame" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
