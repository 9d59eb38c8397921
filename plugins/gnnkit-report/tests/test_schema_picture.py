"""The picture of node types and relations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from gnnkit_report import schema
from gnnkit_report.drawing import WIDTH, Figure
from gnnkit_report.page import svg_file
from gnnkit_report.run import RunFiles

SHOP = {
    "node_types": [["users", 300], ["orders", 14465], ["lines", 28745], ["products", 60]],
    "relations": [
        ["lines", "order_id", "orders"],
        ["orders", "rev_order_id", "lines"],
        ["lines", "sku", "products"],
        ["orders", "buyer", "users"],
        ["orders", "payer", "users"],
        ["users", "friend", "users"],
    ],
    "edges": [28745, 28745, 28001, 14465, 1200, 7],
}


def draw(values: Any) -> list[Figure]:
    return schema.drawings(RunFiles(Path(), {}, "", (), (), {"schema": values}))


def texts_of(figure: Figure) -> list[str]:
    return [shape.text for shape in figure.shapes if shape.tag == "text"]


def test_each_type_is_a_box_and_each_relation_an_arrow_with_its_edges() -> None:
    (figure,) = draw(SHOP)
    boxes = {shape.note: float(shape.attributes["y"]) for shape in figure.shapes if shape.tag == "rect"}
    assert {*boxes} == {"users: 300 nodes", "orders: 14,465 nodes", "lines: 28,745 nodes", "products: 60 nodes"}
    assert boxes["lines: 28,745 nodes"] < boxes["orders: 14,465 nodes"] < boxes["users: 300 nodes"]
    arrows = [shape.note for shape in figure.shapes if shape.tag == "polyline" and shape.note]
    assert arrows == [
        "lines → orders by order_id: 28,745 edges",
        "lines → products by sku: 28,001 edges",
        "orders → users by buyer: 14,465 edges",
        "orders → users by payer: 1,200 edges",
        "users → users by friend: 7 edges",
    ]
    assert {"28.7k", "28k", "14.5k", "1.2k", "7"} <= {*texts_of(figure)}


def test_a_picture_is_the_same_each_time_and_within_its_box() -> None:
    (figure,) = draw(SHOP)
    assert svg_file(figure) == svg_file(draw(SHOP)[0])
    points = [
        point
        for shape in figure.shapes
        for point in re.findall(r"([\d.-]+),([\d.-]+)", shape.attributes.get("points", ""))
    ]
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= figure.height for x, y in points)


def ring(count: int) -> dict[str, Any]:
    relations = [[f"t{place}", "next", f"t{(place + 1) % count}"] for place in range(count)]
    return {"node_types": [[f"t{place}", 1] for place in range(count)], "relations": relations, "edges": [1] * count}


@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_rings_of_types_have_distinct_places(count: int) -> None:
    (figure,) = draw(ring(count))
    places = [(shape.attributes["x"], shape.attributes["y"]) for shape in figure.shapes if shape.tag == "rect"]
    assert len(set(places)) == count


HOSTILE: list[Any] = [
    None,
    [],
    "x",
    {},
    {"node_types": 3, "relations": "x", "edges": None},
    {"node_types": [["a", 1]], "relations": [["a", "r", "a"]], "edges": [1]},
    {"node_types": [["a", 1], ["b", None]], "relations": [["a", "r", "b"]], "edges": [1]},
    {"node_types": [["a", 1], ["b", 2]], "relations": [["a", "r", "c"], ["a", "r"], 7], "edges": [1, 2, 3]},
    {"node_types": [["a", 1], ["b", 2]], "relations": [["a", "r", "b"]], "edges": ["x"]},
    ring(41),
]


@pytest.mark.parametrize("values", HOSTILE)
def test_other_values_have_no_picture(values: Any) -> None:
    assert draw(values) == []


def test_names_are_escaped() -> None:
    values = {"node_types": [["<b>", 1], ["&", 2]], "relations": [["<b>", "</g>", "&"]], "edges": [1]}
    text = svg_file(draw(values)[0]).decode()
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
