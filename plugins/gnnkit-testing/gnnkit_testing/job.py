"""The contract of jobs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from gnnkit import config, plugins
from gnnkit.config import JobFacts, keys
from gnnkit.config.settings.fields import KeyRule, Section, key_rules
from gnnkit.errors import UserError
from gnnkit.jobs.job import Job

_PROPERTIES = tuple(inspect.get_annotations(JobFacts))  # properties that a job may set


def check_job(job: type[Job]) -> None:
    """Checks a job's name, its properties, and the keys that only it has.

    The YAML file has the keys of the class's `keys`, each with a comment and a default
    that the class accepts, and none of another job or of the main configuration.
    Raises `UserError` for an object that is no job's class, and `AssertionError` for
    the first violation.
    """
    if not (isinstance(job, type) and issubclass(job, Job)):
        raise UserError(f"found {job!r}: expected a class that derives from gnnkit.jobs.Job")
    assert plugins.load("job", job.name) is job, f"the entry point of group gnnkit.job must be {job.name}"
    for name in _PROPERTIES:
        value, default = getattr(job, name), getattr(JobFacts, name)
        assert name == "keys" or type(value) is type(default), f"{name}={value!r} must be like {default!r}"
    _check_keys(job)


def _check_keys(job: type[Job]) -> None:
    schema = keys.read(plugins.JOBS, job.name)
    assert schema.summary, f"the first line of conf/jobs/{job.name}.yaml must be a comment on the job"
    assert all(key.comment for key in schema.keys), f"each key of {job.name}.yaml must have a comment"
    names, rules = {key.name for key in schema.keys}, dict(_rules(job.keys)) if job.keys else {}
    assert names == rules.keys(), f"{job.name}.yaml has {sorted(names)}, and `keys` {sorted(rules)}"
    for key in schema.keys:
        if key.value is not None:  # null may stand for a key that the user has to set
            try:
                rules[key.name].read(key.name, key.value)
            except UserError as error:
                raise AssertionError(f"{job.name}.yaml: {error}") from error
    assert plugins.JOBS not in config.compose([f"job={job.name}"]), (
        f"the first line of {job.name}.yaml must be # @package _global_"
    )
    of_jobs = (keys.read(plugins.JOBS, name) for name in plugins.names("job") if name != job.name)
    for option in (keys.read("", config.MAIN), *of_jobs):
        duplicates = names.intersection(key.name for key in option.keys)
        assert not duplicates, f"{duplicates} are keys of {option.name}, too"


def _rules(section: type[Section], prefix: str = "") -> Iterator[tuple[str, KeyRule]]:
    """Yields the rule of each key, by its name such as `hubs.count`."""
    for rule in key_rules(section):
        if rule.section is None:
            yield f"{prefix}{rule.name}", rule
        else:
            yield from _rules(rule.section, f"{prefix}{rule.name}.")
