"""Files in the forms of public data sets give one graph, or one refusal with a cure."""

from __future__ import annotations

import pytest

from gnnkit.graph import Graph
from tests.public_files import DOORS, FILES, PublicFile, are_equal, outcomes


@pytest.mark.parametrize("name", FILES)
def test_a_public_file_is_the_same_through_every_door(name: str) -> None:
    public_file = FILES[name]
    actual = outcomes(public_file)
    assert actual.keys() == DOORS.keys()
    if public_file.refused:
        assert not any(isinstance(value, Graph) for value in actual.values())
        assert public_file.refused in str(actual["dataset=edges"])
        if not public_file.differ:
            assert public_file.refused in str(actual["Graph.from_tables"])
    else:
        assert isinstance(actual["dataset=edges"], Graph), actual["dataset=edges"]
        assert are_equal(actual) or public_file.differ, actual


def test_another_graph_is_seen() -> None:
    first, second = (outcomes(PublicFile(f"src,dst\n0,1\n1,{end}\n"))["job=import"] for end in (0, 1))
    assert are_equal({"one": first, "again": first})
    assert not are_equal({"one": first, "other": second})
    assert not are_equal({"one": first, "other": "refused"})
