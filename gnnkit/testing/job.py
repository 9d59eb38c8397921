"""The contract of jobs."""

from __future__ import annotations

import inspect

from gnnkit import config, plugins
from gnnkit.config import JobFacts, keys
from gnnkit.config.settings.fields import key_rules
from gnnkit.errors import UserError
from gnnkit.jobs.job import Job

_PROPERTIES = tuple(inspect.get_annotations(JobFacts))  # properties that a job may set


def check_job(job: type[Job]) -> None:
    """Checks a job's name, its properties, and the keys that only it has.

    The YAML file has the keys of the class's `keys`, each with a comment, and none of
    another job or of the main configuration. Raises `UserError` for an object that is
    no job's class, and `AssertionError` for the first violation.
    """
    if not (isinstance(job, type) and issubclass(job, Job)):
        raise UserError(f"found {job!r}: expected a class that derives from gnnkit.jobs.Job")
    assert plugins.load("job", job.name) is job, f"the entry point of group gnnkit.job must be {job.name}"
    for name in _PROPERTIES:
        value, default = getattr(job, name), getattr(JobFacts, name)
        assert name == "keys" or type(value) is type(default), f"{name}={value!r} must be like {default!r}"
    _check_keys(job)


def _check_keys(job: type[Job]) -> None:
    described = keys.read(plugins.JOBS, job.name)
    assert described.summary, f"the first line of conf/jobs/{job.name}.yaml must be a comment on the job"
    assert all(key.comment for key in described.keys), f"each key of {job.name}.yaml must have a comment"
    written, rules = {key.name for key in described.keys}, key_rules(job.keys) if job.keys else ()
    sections = {name.partition(".")[0] for name in written}
    assert sections == {rule.name for rule in rules}, f"{job.name}.yaml has {sections}, and `keys` other ones"
    of_jobs = (keys.read(plugins.JOBS, name) for name in plugins.names("job") if name != job.name)
    for option in (keys.read("", config.MAIN), *of_jobs):
        shared = written.intersection(key.name for key in option.keys)
        assert not shared, f"{shared} are keys of {option.name}, too"
