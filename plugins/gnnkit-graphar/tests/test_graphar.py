"""Folders of Apache GraphAr: vertices and edges in chunks of Parquet, ORC and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gnnkit_graphar import GraphAr

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.folders import digests_of, graphar_folder

RELATIONS = ("person-saw-film", "person-knows-person")


def made(folder: Path, **changes: Any) -> dict[str, Any]:
    return graphar_folder(folder, np.random.default_rng(0), **changes)


def read(folder: Path, **options: Any) -> Graph:
    return GraphAr(str(folder), **{"symmetrize": False, **options}).load()


def edges_of(graph: Graph, relation: str) -> list[tuple[int, int, float, float]]:
    """Lists source, destination, weight and stars of the edges of a relation."""
    own = graph.edge_types == graph.edge_type_names.index(relation)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    columns = (graph.csc.indices, dst, graph.csc.weight, graph.edge_features[:, 0])
    return sorted(zip(*(column[own].tolist() for column in columns), strict=True))


@pytest.mark.slow
def test_types_of_nodes_and_of_edges_are_read(tmp_path: Path) -> None:
    tables = made(tmp_path / "data")
    graph = read(tmp_path / "data")
    person, film = (tables[name].to_pydict() for name in ("person", "film"))
    assert graph.node_types == (("person", 25), ("film", 12))
    assert graph.node_ids.tolist() == [*(f"person:p{i}" for i in range(25)), *(f"film:{7 * i}" for i in range(12))]
    assert graph.feature_names == ("person.age", "person.place[0]", "person.place[1]", "film.year")
    people = np.column_stack([person["age"], person["place"], np.zeros(25)])
    np.testing.assert_array_equal(graph.features[:25], people.astype(np.float32))
    np.testing.assert_array_equal(graph.features[25:], [[0, 0, 0, year] for year in film["year"]])
    assert graph.class_names == ("cat", "dog")
    assert [graph.class_names[label] for label in graph.labels[:25]] == person["label"]
    assert set(graph.labels[25:].tolist()) == {-1}
    assert graph.split.tolist() == [{"train": 1, "test": 3}[each] for each in person["split"]] + [0] * 12
    assert graph.edge_type_names == RELATIONS
    for name, relation, first in (("saw", RELATIONS[0], 25), ("knows", RELATIONS[1], 0)):
        columns = tables[name].to_pydict()
        ends = [columns["_graphArSrcIndex"], [each + first for each in columns["_graphArDstIndex"]]]
        assert edges_of(graph, relation) == sorted(zip(*ends, columns["weight"], columns["stars"], strict=True))


@pytest.mark.slow
def test_what_is_left_out_and_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made(folder, film={"year": np.arange(12) % 3})
    graph = read(folder, label="film.year", ignore=["person.label", "split", "stars", "place"], split=[0.5, 0.2, 0.3])
    assert graph.labels.tolist() == [-1] * 25 + [v % 3 for v in range(12)]
    assert graph.feature_names == ("person.age", "film.is")
    assert graph.features[25:].tolist() == [[0.0, 1.0]] * 12
    assert graph.edge_features is None
    assert (graph.split > 0).sum() == 12
    (folder / "films.graph.yml").unlink()  # all descriptions are read, by name
    assert read(folder).node_types == (("film", 12), ("person", 25))


@pytest.mark.slow
def test_lists_of_edges_are_columns_and_ignored_labels_are_none(tmp_path: Path) -> None:
    pairs = {"saw": 90, "knows": 40}
    made(tmp_path / "data", **{name: {"stars": [[1.0, float(v)] for v in range(k)]} for name, k in pairs.items()})
    graph = read(tmp_path / "data", ignore=["person.label", "split"])
    assert graph.edge_feature_names == ("stars[0]", "stars[1]")
    assert graph.edge_features.shape == (130, 2)
    assert set(graph.labels.tolist()) == {-1}


@pytest.mark.slow
def test_text_is_categories_and_a_cell_may_be_empty(tmp_path: Path) -> None:
    kinds = [["old", "new", None][v % 3] for v in range(12)]
    tables = made(tmp_path / "data", film={"year": kinds}, person={"age": [None if v == 4 else v for v in range(25)]})
    graph = read(tmp_path / "data")
    assert graph.feature_names[3:] == ("film.year=new", "film.year=old")
    assert graph.category_of == ("", "", "", "film.year", "film.year")
    assert graph.features[25:28].tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    gaps = [(4, 0), *((25 + v, column) for v in range(2, 12, 3) for column in (3, 4))]
    assert graph.missing.tolist() == [list(cell) for cell in gaps]
    assert tables["person"]["age"].null_count == 1


@pytest.mark.slow
def test_one_type_keeps_its_own_ids_and_relations_without_direction_lead_both_ways(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made(folder, person={"name": np.arange(25) + 100})
    facts = yaml.safe_load((folder / "films.graph.yml").read_text())
    facts |= {"vertices": ["person.vertex.yml"], "edges": ["person_knows_person.edge.yml"]}
    (folder / "people.graph.yml").write_text(yaml.safe_dump(facts))
    path = folder / "person_knows_person.edge.yml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "directed": False}))
    graph = read(folder, graph="people", symmetrize=None)
    assert graph.node_ids.tolist() == list(range(100, 125))
    assert graph.node_types is None
    assert graph.feature_names == ("age", "place[0]", "place[1]")
    assert graph.num_edges > 40
    assert read(folder, graph="people").num_edges == 40
    with pytest.raises(UserError, match=r"contains several graphs: set dataset\.graph=NAME to one of films, people"):
        read(folder)
    with pytest.raises(UserError, match=r"dataset\.graph=film"):
        read(folder, graph="film")


@pytest.mark.slow
def test_relations_without_weights_weigh_one_and_no_edges_are_a_graph(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made(folder)
    path = folder / "person_knows_person.edge.yml"
    facts = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**facts, "property_groups": facts["property_groups"][1:]}))
    assert {weight for *_, weight, _ in edges_of(read(folder), RELATIONS[1])} == {1.0}
    for name in (RELATIONS[0], RELATIONS[1]):
        for count in (folder / "edge" / name.replace("-", "_")).rglob("edge_count*"):
            count.write_bytes(bytes(8))
    graph = read(folder)
    assert (graph.num_edges, graph.edge_type_names) == (0, RELATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["orc", "csv"])
def test_chunks_of_orc_and_csv_are_the_graph_of_parquet(form: str, tmp_path: Path) -> None:
    made(tmp_path / "parquet")
    made(tmp_path / "other", form=form, lists="parquet" if form == "csv" else form)
    read(tmp_path / "parquet").save(tmp_path / "expected")
    read(tmp_path / "other").save(tmp_path / "found")
    assert digests_of(tmp_path / "found") == digests_of(tmp_path / "expected")


@pytest.mark.slow
def test_text_of_csv_stays_text_where_the_files_say_so(tmp_path: Path) -> None:
    made(tmp_path / "data", form="csv", person={"name": [f"{i:03}" for i in range(25)]})
    graph = read(tmp_path / "data")
    assert graph.node_ids[:2].tolist() == ["person:000", "person:001"]


def change(path: Path, old: bytes, new: bytes) -> None:
    found = path.read_bytes()
    assert old in found
    path.write_bytes(found.replace(old, new, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "damage", "message"),
    [
        (
            "csv",
            lambda folder: change(folder / "vertex/film/title_year/chunk1", b"\n63,", b"\nx63,"),
            r"vertex/film/title_year/chunk1, line 4: In CSV column #0: CSV conversion error to int64: .*'x63'",
        ),
        (
            "csv",
            lambda folder: change(folder / "vertex/film/title_year/chunk1", b"\n63,", b"\n63,1,"),
            r"vertex/film/title_year/chunk1, line 4: CSV parse error: Expected 2 columns, got 3",
        ),
        (
            "csv",
            lambda folder: change(folder / "vertex/film/title_year/chunk0", b'"title"', b'"titel"'),
            r"title_year/chunk1 has the columns title, year, but .*chunk0 has titel, year; all parts need the same",
        ),
        (
            "csv",
            lambda folder: cut_last_line(folder / "vertex/film/title_year/chunk1"),
            r"vertex/film/title_year/chunk1 has 4 rows, expected 5",
        ),
        (
            "csv",
            lambda folder: cut_last_line(folder / "edge/person_saw_film/ordered_by_source/adj_list/part1/chunk0"),
            r"adj_list/part1/chunk0 has 15 rows, expected 16",
        ),
        (
            "orc",
            lambda folder: (folder / "vertex/film/title_year/chunk1").write_bytes(b"ORC"),
            r"vertex/film/title_year/chunk1: ",
        ),
        (
            "orc",
            lambda folder: overwrite(folder / "vertex/film/title_year/chunk1"),
            r"vertex/film/title_year/chunk1, stripe 0: ",
        ),
    ],
)
def test_a_damaged_chunk_is_named_with_the_line(form: str, damage: Any, message: str, tmp_path: Path) -> None:
    made(tmp_path / "data", form=form)
    damage(tmp_path / "data")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "data")


def cut_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def overwrite(path: Path) -> None:
    """Damages the first stream of a stripe, and leaves the footer."""
    found = bytearray(path.read_bytes())
    found[3:100] = bytes(97)
    path.write_bytes(found)


def rewrite(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def without(folder: Path, name: str, key: str) -> None:
    path = folder / name
    path.write_text(
        yaml.safe_dump({each: value for each, value in yaml.safe_load(path.read_text()).items() if each != key})
    )


KNOWS, SAW, PERSON = "person_knows_person.edge.yml", "person_saw_film.edge.yml", "person.vertex.yml"
JSON = [{"file_type": "json", "prefix": "", "properties": [{"name": "name"}]}]


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (lambda folder: (folder / PERSON).write_text("["), {}, r"person\.vertex\.yml cannot be read"),
        (lambda folder: (folder / PERSON).write_text("3"), {}, r"person\.vertex\.yml holds no keys"),
        (lambda folder: rewrite(folder, PERSON, version="gar/v2"), {}, "has version gar/v2, expected gar/v1"),
        (lambda folder: without(folder, PERSON, "chunk_size"), {}, r"person\.vertex\.yml has no key chunk_size"),
        (lambda folder: rewrite(folder, PERSON, chunk_size=0), {}, "person.vertex.yml: chunk_size"),
        (lambda folder: rewrite(folder, PERSON, property_groups=[3]), {}, "property_groups must list groups"),
        (
            lambda folder: rewrite(folder, PERSON, property_groups=JSON),
            {},
            "name have file_type json, expected parquet or orc or csv",
        ),
        (
            lambda folder: rewrite(folder, PERSON, property_groups=[{"file_type": "parquet", "properties": [3]}]),
            {},
            "each property needs a name",
        ),
        (
            lambda folder: rewrite(folder, SAW, adj_lists=[]),
            {},
            "adj_lists must contain a list with file_type parquet, orc, csv",
        ),
        (
            lambda folder: rewrite(folder, SAW, adj_lists=[{"file_type": "parquet", "aligned_by": "x"}]),
            {},
            "aligned_by x, expected src or dst",
        ),
        (lambda folder: rewrite(folder, SAW, dst_type="fil"), {}, r"type fil.*film"),
        (lambda folder: rewrite(folder, "films.graph.yml", vertices=[]), {}, "names no vertices"),
        (
            lambda folder: rewrite(folder, KNOWS, property_groups=[]),
            {},
            "edges person-knows-person have the properties none, but person-saw-film have stars: all relations need",
        ),
        (lambda folder: (folder / "vertex/person/vertex_count").write_bytes(b"1"), {}, "has 1 bytes, expected 8"),
        (lambda folder: (folder / "vertex/person/vertex_count").unlink(), {}, "person/vertex_count: No such file"),
        (
            lambda folder: (folder / "vertex/person/vertex_count").write_bytes((26).to_bytes(8, "little")),
            {},
            "vertex/person/name_age has 25 rows in its chunks, expected 26",
        ),
        (lambda folder: (folder / "vertex/film/title_year/chunk1").unlink(), {}, "chunk1: No such file"),
        (
            lambda folder: rewrite(folder, SAW, dst_type="person", src_type="film"),
            {},
            r"part1/chunk1, column '_graphArSrcIndex', row 5: 12 is out of range for 12 nodes",
        ),
        (lambda folder: None, {"label": "place"}, "column 'place' holds list"),
        (lambda folder: None, {"label": "kind"}, r"dataset\.label=kind"),
        (lambda folder: None, {"ignore": ["kind"]}, r"dataset\.ignore=kind is not known: there are: age, film"),
    ],
)
def test_what_does_not_fit_is_named(damage: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made(folder)
    damage(folder)
    with pytest.raises(UserError, match=message) as raised:
        read(folder, **options)
    assert str(raised.value).startswith(f"dataset.root={folder}: ")


@pytest.mark.slow
def test_labels_of_several_types_need_a_choice_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    made(tmp_path / "data", film={"year": np.arange(12)})
    rewrite(
        tmp_path / "data",
        "film.vertex.yml",
        property_groups=[
            {"file_type": "parquet", "prefix": "title_year", "properties": [{"name": "title"}, {"name": "age"}]}
        ],
    )
    with pytest.raises(UserError, match=r"set dataset\.label=TYPE\.NAME to one of person\.age, film\.age"):
        read(tmp_path / "data", label="age", ignore=["person.label", "split"])
    with pytest.raises(UserError, match="is not a folder"):
        read(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"contains no \.graph\.yml and no \.vertex\.yml"):
        read(tmp_path / "empty")
