"""Readers of tables and arrays for data set packages.

A `Source` is a table in one or more files, read in pieces: `CsvSource`,
`ParquetSource`, `ArraySource` (`.npy`), or a subclass of `PartSource` for another
format. A piece is a `Table`. Its errors name file, column and row. The functions and
`Cells` read labels, splits and feature columns as `dataset=edges` does.
"""

from gnnkit.dataset.base import name_list
from gnnkit.dataset.importing.csv_source import CsvSource
from gnnkit.dataset.importing.source import Source
from gnnkit.dataset.importing.sources import ArraySource, ParquetSource, PartSource
from gnnkit.dataset.importing.tables import Cells, labels_of, split_of, survey, texts_of
from gnnkit.dataset.table_files import check_width
from gnnkit.graph.attributes import warn_unread
from gnnkit.graph.feature_columns import warn_readings
from gnnkit.graph.labels import unlabelled
from gnnkit.graph.missing import read_missing
from gnnkit.graph.table import Table
from gnnkit.graph.values import ColumnReading, is_text
from gnnkit.utils.documents import check_regular, read_mapping

__all__ = [
    "ArraySource",
    "Cells",
    "ColumnReading",
    "CsvSource",
    "ParquetSource",
    "PartSource",
    "Source",
    "Table",
    "check_regular",
    "check_width",
    "is_text",
    "labels_of",
    "name_list",
    "read_mapping",
    "read_missing",
    "split_of",
    "survey",
    "texts_of",
    "unlabelled",
    "warn_readings",
    "warn_unread",
]
