"""One page about a run, or about several: HTML with SVG figures, also as files.

Reads the files of run folders only. A `Figure` is a list of SVG shapes, and the Jinja2
templates in `templates/` render figures and tables, with all text escaped.
"""

from gnnkit.report.compare import compare as compare
from gnnkit.report.run import Run as Run
from gnnkit.report.run import read_folder as read_folder
from gnnkit.report.run import read_run as read_run
from gnnkit.report.run_page import progress as progress
from gnnkit.report.run_page import served_page as served_page
from gnnkit.report.run_page import write as write
from gnnkit.report.sweep import Sweep as Sweep
from gnnkit.report.sweep import SweptRun as SweptRun
from gnnkit.report.sweep import write_sweep as write_sweep
