"""Forms in which text writes dates and clock times, except ISO 8601."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.graph.ids import numbers_of

_MIDNIGHT = -2_208_988_800  # 1900-01-01 in seconds, the day that strptime gives a clock time
UNCLEAR_CENTURY = 1_893_456_000  # 2030-01-01 in seconds. Other programs read the years 30 to 68 as 1930 to 1968
_UTC = r" ?(?:Z|UTC|GMT|[+-]00:?00)"
_PARTS = {
    **{"%Y": r"\d{4}", "%y": r"\d{2}", "%m": r"\d{1,2}", "%d": r"(?P<day>\d{1,2})", "%b": "[A-Za-z]{3,9}"},
    **{"%a": "[A-Z][a-z]{2}", "%H": r"\d{1,2}", "%I": r"\d{1,2}", "%M": r"\d{2}", "%S": r"\d{2}"},
    **{"%p": "(?i:[AP]M)", ".": r"\.", "+": r"\+"},
}
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %I:%M%p", " %I:%M:%S%p")
_DAYS = (
    *("%Y/%m/%d", "%Y-%m-%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%m-%d-%Y", "%d-%m-%Y"),
    *("%d.%m.%Y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y", "%b %d %Y", "%a, %d %b %Y"),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S +0000 %Y"),
)


@dataclass(frozen=True, slots=True)
class DateForm:
    """One way to write a day, which a clock time may follow, or a clock time."""

    day: str  # format for strptime, or ""

    @property
    def kind(self) -> str:
        """The kind for `ColumnReading`, because only dates may be row times."""
        return "seconds" if self.day else "numbers"

    def seconds(self, text: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
        """Returns seconds since 1970 or midnight, and NaN for other text."""
        text = pc.replace_substring_regex(text, f"{_UTC}$", "") if self.day else text
        seconds = np.full(len(text), np.nan)
        for form in filter(None, (f"{self.day}{time}".strip() for time in _TIMES)):
            pattern = f"^{re.sub('%.|[.+]', lambda part: _PARTS[part[0]], form)}$"
            fits = numbers_of(pc.match_substring_regex(text, pattern))
            if fits.any():
                seconds[fits] = _parse(text.filter(pa.array(fits)), pattern, form)
        return seconds if self.day else seconds - _MIDNIGHT

    def read(self, text: pa.Array) -> npt.NDArray[np.float64] | None:  # [rows]
        """Returns `seconds`, or None unless all texts have this form.

        The first text decides most columns.
        """
        if np.isnan(self.seconds(text[:1])).any():
            return None
        seconds = self.seconds(text)
        return None if np.isnan(seconds).any() else seconds


@dataclass(frozen=True, slots=True)
class LapForm(DateForm):
    """A duration in minutes and seconds with a fraction, such as 1:27.452."""

    def seconds(self, text: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
        cells = pc.extract_regex(text, r"^(?P<m>\d{1,3}):(?P<s>[0-5]\d\.\d{1,6})$")
        minutes, seconds = (numbers_of(pc.struct_field(cells, name).cast(pa.float64())) for name in ("m", "s"))
        result: npt.NDArray[np.float64] = 60 * minutes + seconds
        return result


FORMS = (*map(DateForm, (*_DAYS, "")), LapForm(""))


def _parse(text: pa.Array, pattern: str, form: str) -> npt.NDArray[np.float64]:  # [rows]
    """Parses texts that match a pattern. Days that no month has are NaN."""
    dates = pc.strptime(text, format=form, unit="s", error_is_null=True)
    seconds: npt.NDArray[np.float64] = numbers_of(dates.cast(pa.int64()).cast(pa.float64()))
    if "%d" in form:
        days = pc.struct_field(pc.extract_regex(text, pattern), "day").cast(pa.int64())
        seconds = np.where(numbers_of(pc.equal(days, pc.day(dates)).fill_null(False)), seconds, np.nan)
    return seconds
