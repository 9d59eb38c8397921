"""The texts of `--help` and `--info`, and the words of tab completion."""

from gnnkit.usage.help import general as general
from gnnkit.usage.help import section as section
