"""Typed, validated settings. Importing this package imports no heavy dependency."""

from gnnkit.config.settings.choice import Choice as Choice
from gnnkit.config.settings.choice import PartitionSettings as PartitionSettings
from gnnkit.config.settings.choice import launcher_for as launcher_for
from gnnkit.config.settings.fields import AUTO as AUTO
from gnnkit.config.settings.fields import MAX_RUNS as MAX_RUNS
from gnnkit.config.settings.fields import MOST_MEMORY as MOST_MEMORY
from gnnkit.config.settings.fields import Section as Section
from gnnkit.config.settings.ranks import in_ipython as in_ipython
from gnnkit.config.settings.ranks import in_notebook as in_notebook
from gnnkit.config.settings.sections import FILLS as FILLS
from gnnkit.config.settings.sections import OPTIMIZERS as OPTIMIZERS
from gnnkit.config.settings.sections import SCALES as SCALES
from gnnkit.config.settings.sections import OnNan as OnNan
from gnnkit.config.settings.sections import TrainerSettings as TrainerSettings
from gnnkit.config.settings.settings import DEFAULT_TASK as DEFAULT_TASK
from gnnkit.config.settings.settings import FEW_EDGES as FEW_EDGES
from gnnkit.config.settings.settings import SMALL_EDGES as SMALL_EDGES
from gnnkit.config.settings.settings import USUAL_ORDERS as USUAL_ORDERS
from gnnkit.config.settings.settings import Settings as Settings
from gnnkit.config.settings.settings import settle as settle
from gnnkit.config.settings.settings import with_choice as with_choice
from gnnkit.config.settings.settings import with_partition as with_partition
from gnnkit.config.settings.settings import with_plugins as with_plugins
from gnnkit.config.settings.settings import with_workers as with_workers
