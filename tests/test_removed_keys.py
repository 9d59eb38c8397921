"""Keys of earlier versions are refused with what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gnnkit.config import compose
from gnnkit.config.earlier import of_file, of_run
from gnnkit.errors import UserError
from gnnkit.utils.ranges import REMOVED


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_is_refused_with_its_replacement(key: str) -> None:
    with pytest.raises(UserError) as raised:
        compose(["strategy=vertex_centric", f"{key}=0.1"])
    assert str(raised.value) == f"{key} was removed: {REMOVED[key]}"


def test_a_removed_key_is_refused_beside_a_section_without_options() -> None:
    with pytest.raises(UserError, match=r"^strategy\.correction was removed: use strategy=llcg or strategy=coverage"):
        compose(["strategy=preset_workload", "logger=[]", "strategy.correction=llcg"])


@pytest.mark.parametrize("value", [None, "auto"])
def test_a_recorded_run_may_have_removed_keys_at_their_defaults(value: str | None, tmp_path: Path) -> None:
    sections = {"model": {"name": "gcn"}, "task": {"name": "node_classification"}, "trainer": {"exact_finish": value}}
    sections["exchange"] = {"name": "adaptive", "variation": 0.05, "max_age": 10}
    keys = {"name": "vertex_centric", "max_drift": value, "max_iterations": value, "local_iterations": 4}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(sections | {"strategy": keys}))
    run = of_run(tmp_path)
    assert run["strategy"] == {"name": "vertex_centric", "local_iterations": 4}
    assert run["exchange"] == {"name": "adaptive", "variation": 0.05}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(sections | {"strategy": keys}))
    overrides, _ = of_file("mine", [tmp_path], [])
    assert not [text for text in overrides if text.partition("=")[0].strip("+") in REMOVED]
