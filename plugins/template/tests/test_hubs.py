import numpy as np
import pytest
from gnnkit_template.job import Hubs

import gnnkit
from gnnkit.graph import Graph
from gnnkit.testing import check_job, example_graphs


def test_hubs_keep_the_promises_of_jobs() -> None:
    check_job(Hubs)


def test_the_nodes_with_most_in_edges_are_in_the_result(tmp_path) -> None:
    graph: Graph = max(example_graphs(), key=lambda graph: graph.num_edges)
    result = gnnkit.train(graph, job="hubs", hubs={"count": 2}, folder=tmp_path / "run")
    assert result["in_edges"] == np.sort(np.diff(graph.csc.indptr))[::-1][:2].tolist()
    assert "count: 2  # number of nodes" in (tmp_path / "run/config.yaml").read_text()


def test_keys_of_hubs_are_checked_and_belong_to_it() -> None:
    with pytest.raises(gnnkit.UserError, match=r"hubs\.count=0 must be a whole number from 1 to 1000"):
        gnnkit.train(job="hubs", hubs={"count": 0})
    with pytest.raises(gnnkit.UserError, match=r"hubs\.count is read by job=hubs only: leave the key out"):
        gnnkit.train(hubs={"count": 2})
