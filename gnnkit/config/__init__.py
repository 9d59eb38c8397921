"""Composes YAML files and overrides to plain data and typed settings.

`compose` composes the configuration, `code` rejects anything that would execute code,
and `earlier` rereads a run's configuration. `hydra` reads the supported Hydra settings.
Hydra is imported on first use. `keys` reads defaults and comments from the YAML files
for `usage` (the texts of `--help` and `--info`) and `completion`. `settings` validates
a composed configuration. It imports launchers and is therefore not exported here.
"""

from gnnkit.config.code import key_of as key_of
from gnnkit.config.compose import EXPERIMENT as EXPERIMENT
from gnnkit.config.compose import MAIN as MAIN
from gnnkit.config.compose import SECTIONS as SECTIONS
from gnnkit.config.compose import as_overrides as as_overrides
from gnnkit.config.compose import compose as compose
from gnnkit.config.compose import dotted_keys as dotted_keys
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
from gnnkit.config.keys import JobFacts as JobFacts
from gnnkit.config.keys import check_removed as check_removed
from gnnkit.config.keys import is_default as is_default
from gnnkit.config.keys import is_former_default as is_former_default
from gnnkit.config.keys import removed_keys as removed_keys
