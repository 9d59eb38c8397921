"""What models are trained to say: loss, metrics and predictions, one file a task."""

from gnnkit.task.base import LabelFacts as LabelFacts
from gnnkit.task.base import NodeTask as NodeTask
from gnnkit.task.base import Task as Task
from gnnkit.task.base import numbered as numbered
