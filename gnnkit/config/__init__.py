"""From names, YAML and overrides to a configuration, and to typed settings.

`compose` composes, `code` refuses what would run code, and `earlier` reads the
configuration of a run again. `hydra` takes the settings of Hydra that are allowed, and
`sweeps` reads the grammar of `--multirun`. Hydra is imported at the first call. `keys`
reads defaults and comments from the YAML files, for `usage` (the text of `--help`),
`info` and `completion`. `settings` checks a composed configuration. It is imported by
name, as it imports launchers.
"""

from gnnkit.config.code import key_of as key_of
from gnnkit.config.compose import EXPERIMENT as EXPERIMENT
from gnnkit.config.compose import MAIN as MAIN
from gnnkit.config.compose import SECTIONS as SECTIONS
from gnnkit.config.compose import as_overrides as as_overrides
from gnnkit.config.compose import choices as choices
from gnnkit.config.compose import compose as compose
from gnnkit.config.compose import dotted as dotted
from gnnkit.config.compose import key_for as key_for
from gnnkit.config.compose import leaves as leaves
from gnnkit.config.compose import of_option as of_option
from gnnkit.config.earlier import RECORD as RECORD
from gnnkit.config.earlier import of_file as of_file
from gnnkit.config.earlier import of_run as of_run
from gnnkit.config.earlier import read_otherwise as read_otherwise
from gnnkit.config.earlier import with_data as with_data
from gnnkit.config.earlier import with_run as with_run
from gnnkit.config.hydra import HYDRA_PARTS as HYDRA_PARTS
from gnnkit.config.hydra import HydraSettings as HydraSettings
from gnnkit.config.hydra import fill as fill
from gnnkit.config.hydra import hydra_options as hydra_options
from gnnkit.config.hydra import hydra_section as hydra_section
from gnnkit.config.hydra import split as split
from gnnkit.config.jobs import JOBS as JOBS
from gnnkit.config.jobs import JobFacts as JobFacts
from gnnkit.config.sweeps import Space as Space
from gnnkit.config.sweeps import expand as expand
from gnnkit.config.sweeps import spaces as spaces
