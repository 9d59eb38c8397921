"""Tasks, which define loss, metrics and predictions, one file each."""

from gnnkit.task.base import LabelFacts as LabelFacts
from gnnkit.task.base import NodeTask as NodeTask
from gnnkit.task.base import Task as Task
from gnnkit.task.base import name_columns as name_columns
