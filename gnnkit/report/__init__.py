"""One page about a run, or about several: HTML with drawings, and PNGs of these.

Reads the files of run folders only. A `Figure` is a list of shapes. `svg` spells the
shapes for the page, and `png` paints the same shapes.
"""

from gnnkit.report.compare import compare as compare
from gnnkit.report.page import served_page as served_page
from gnnkit.report.page import write as write
from gnnkit.report.run import Run as Run
from gnnkit.report.run import read_folder as read_folder
from gnnkit.report.run import read_run as read_run
from gnnkit.report.sweep import Sweep as Sweep
from gnnkit.report.sweep import SweptRun as SweptRun
from gnnkit.report.sweep import write_sweep as write_sweep
