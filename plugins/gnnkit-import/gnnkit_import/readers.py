# ruff: noqa: PLC0414 - names are re-exported, as in an `__init__`
"""Readers of tables and arrays for data set packages.

`Columns` are a table that is read in pieces: `CsvSource`, `ParquetSource`,
`ArraySource` (`.npy`), or a subclass of `PartSource` for another format. A piece is a
`Table`. Its errors name file, column and row. The functions and `Cells` read labels,
splits and feature columns as `dataset=edges` does.
"""

from pathlib import Path

from gnnkit_formats.attributes import warn_unread as warn_unread
from gnnkit_formats.columns import Columns as Columns
from gnnkit_formats.feature_columns import warn_readings as warn_readings
from gnnkit_formats.table import Table as Table
from gnnkit_formats.table_files import check_width as check_width
from gnnkit_formats.table_graph import Cells as Cells
from gnnkit_formats.table_graph import labels_of as labels_of
from gnnkit_formats.table_graph import split_of as split_of
from gnnkit_formats.table_graph import survey as survey
from gnnkit_formats.table_graph import texts_of as texts_of
from gnnkit_formats.values import ColumnReading as ColumnReading
from gnnkit_formats.values import is_text as is_text

from gnnkit.dataset.base import name_list as name_list
from gnnkit.errors import UserError
from gnnkit.graph.cells import read_missing as read_missing
from gnnkit.graph.labels import unlabelled as unlabelled
from gnnkit.utils.documents import Json, read_yaml
from gnnkit.utils.documents import check_regular as check_regular
from gnnkit_import.csv_source import CsvSource as CsvSource
from gnnkit_import.sources import ArraySource as ArraySource
from gnnkit_import.sources import ParquetSource as ParquetSource
from gnnkit_import.sources import PartSource as PartSource


def read_mapping(path: Path) -> Json:
    """Reads a YAML file that holds a mapping. Raises `UserError` that names it."""
    mapping = read_yaml(path, path.name)
    if not isinstance(mapping, dict):
        raise UserError(f"{path.name} holds no keys")
    return mapping
