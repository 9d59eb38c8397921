"""Tables of ORC files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
from gnnkit_import.readers import PartSource, check_regular, check_width

from gnnkit.errors import UserError
from gnnkit.utils.checks import one_line


class OrcSource(PartSource):
    """A table of ORC files, read one stripe at a time. Each stripe must fit memory."""

    def _look(self, path: Path) -> tuple[pa.Schema, int]:
        file = self._open(path)
        return file.schema, file.nrows

    def _read(self, path: Path, rows: int, names: Sequence[str], wanted: range) -> Iterator[tuple[int, pa.RecordBatch]]:
        first, file = 0, self._open(path)
        for number in range(file.nstripes):
            try:
                stripe = file.read_stripe(number, names).select(names)
                stripe.validate(full=True)  # the only check that detects damage in uncompressed bytes
            except (pa.ArrowException, OSError) as error:
                raise UserError(f"{self._names[path]}, stripe {number}: {one_line(error)}") from error
            for start in range(0, stripe.num_rows, rows):
                yield first + start, stripe.slice(start, rows)
            first += stripe.num_rows

    def _open(self, path: Path) -> pyarrow.orc.ORCFile:
        check_regular(path)
        try:
            file = pyarrow.orc.ORCFile(path)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self._names[path]}: {one_line(error)}") from error
        check_width(self._names[path], len(file.schema.names))
        return file
