"""HTML pages about one or several runs, with figures that are also saved as SVG files.

Only the files in run folders are read. A `Figure` is a list of SVG shapes. The Jinja2
templates in `templates/` render figures and tables and escape all text.
"""

from gnnkit.report.run import RunFiles as RunFiles
from gnnkit.report.run import read_folder as read_folder
from gnnkit.report.run import read_run as read_run
from gnnkit.report.run_page import progress as progress
from gnnkit.report.run_page import write as write
from gnnkit.report.sweep import Sweep as Sweep
from gnnkit.report.sweep import SweptRun as SweptRun
from gnnkit.report.sweep import write_sweep as write_sweep
