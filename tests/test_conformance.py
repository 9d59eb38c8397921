"""Every installed partitioner, ours or not, keeps the promises that authors of plugins are held to."""

from __future__ import annotations

import pytest

from gnnkit import plugins
from gnnkit.testing import check_partitioner


@pytest.mark.parametrize("name", plugins.names("partition"))
def test_partitioner_keeps_the_promises_of_the_interface(name: str) -> None:
    check_partitioner(plugins.create("partition", {"nodes": name}))
