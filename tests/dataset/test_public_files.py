"""Files in the forms of public data sets give one graph, or one refusal with a cure."""

from __future__ import annotations

import pytest

from gnnkit.graph import Graph
from tests.public_files import DOORS, FILES, PublicFile, are_equal, outcomes


@pytest.mark.parametrize("name", FILES)
def test_a_public_file_is_the_same_through_every_door(name: str) -> None:
    one = FILES[name]
    found = outcomes(one)
    assert found.keys() == DOORS.keys()
    if one.refused:
        assert not any(isinstance(value, Graph) for value in found.values())
        assert one.refused in str(found["dataset=edges"])
        if not one.differ:
            assert one.refused in str(found["Graph.from_tables"])
    else:
        assert isinstance(found["dataset=edges"], Graph), found["dataset=edges"]
        assert are_equal(found) or one.differ, found


def test_another_graph_is_seen() -> None:
    one, other = (outcomes(PublicFile(f"src,dst\n0,1\n1,{end}\n"))["job=import"] for end in (0, 1))
    assert are_equal({"one": one, "again": one})
    assert not are_equal({"one": one, "other": other})
    assert not are_equal({"one": one, "other": "refused"})
