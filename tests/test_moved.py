"""Former names of modules are importable."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from gnnkit import report
from gnnkit.utils.moved import MOVED


@pytest.mark.parametrize("former", MOVED)
def test_a_former_name_is_the_module_of_the_new_name(former: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, former, raising=False)
    new = importlib.import_module(MOVED[former])
    spec = new.__spec__
    with pytest.warns(DeprecationWarning, match=f"^{former} is now {MOVED[former]}$"):
        assert importlib.import_module(former) is new
    assert new.__spec__ is spec


def test_classes_of_a_former_name_exist_once() -> None:
    program = (
        "from gnnkit.order.base import NodeOrder as former\n"
        "from gnnkit import ranges, order, settings\n"
        "from gnnkit.partition.order.base import NodeOrder as new\n"
        "assert former is new and order.base.NodeOrder is new"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "<string>:1: DeprecationWarning: gnnkit.order.base is now gnnkit.partition.order.base" in done.stderr
    assert "gnnkit.settings is now gnnkit.config.settings" in done.stderr


def test_a_renamed_class_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"^gnnkit\.report\.Run is now gnnkit\.report\.RunFiles$"):
        assert report.Run is report.RunFiles


def test_names_that_do_not_exist_raise_as_before() -> None:
    for name in ("gnnkit.order.nothing", "gnnkit.nothing"):
        with pytest.raises(ModuleNotFoundError, match=r"nothing"):
            importlib.import_module(name)
