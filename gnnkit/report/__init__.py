"""One page about a run, or about several: HTML with drawings, and PNGs of these.

Reads the files of run folders only. A `Figure` is a list of shapes. `svg` spells the
shapes for the page, and `png` paints the same shapes.
"""

from gnnkit.report.compare import compare as compare
from gnnkit.report.page import write as write
from gnnkit.report.run import Run as Run
from gnnkit.report.run import read_run as read_run
