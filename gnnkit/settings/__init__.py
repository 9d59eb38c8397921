"""A checked configuration as typed values. Nothing heavy is imported here."""

from gnnkit.settings.choice import Choice as Choice
from gnnkit.settings.inputs import FILLS as FILLS
from gnnkit.settings.inputs import SCALES as SCALES
from gnnkit.settings.jobs import LinkSettings as LinkSettings
from gnnkit.settings.launchers import launcher_for as launcher_for
from gnnkit.settings.layout import PartitionSettings as PartitionSettings
from gnnkit.settings.ranks import in_ipython as in_ipython
from gnnkit.settings.ranks import in_notebook as in_notebook
from gnnkit.settings.read import settle as settle
from gnnkit.settings.settings import DEFAULT_TASK as DEFAULT_TASK
from gnnkit.settings.settings import FEW_EDGES as FEW_EDGES
from gnnkit.settings.settings import USUAL_ORDERS as USUAL_ORDERS
from gnnkit.settings.settings import Settings as Settings
from gnnkit.settings.settings import with_choice as with_choice
from gnnkit.settings.settings import with_given as with_given
from gnnkit.settings.settings import with_partition as with_partition
from gnnkit.settings.settings import with_workers as with_workers
from gnnkit.settings.trainer import OPTIMIZERS as OPTIMIZERS
from gnnkit.settings.trainer import OnNan as OnNan
from gnnkit.settings.trainer import TrainerSettings as TrainerSettings
from gnnkit.settings.values import AUTO as AUTO
from gnnkit.settings.values import LEAST_MEMORY as LEAST_MEMORY
from gnnkit.settings.values import MAX_RUNS as MAX_RUNS
from gnnkit.settings.values import MOST_MEMORY as MOST_MEMORY
