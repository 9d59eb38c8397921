"""The result of a job, and the names of the files in its folder."""

from gnnkit.result.result import Result as Result
