"""The manifests and the image recipe hold what gnnkit reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.launch.environment import LEAST_TOKEN, started_rank

FOLDER = Path(__file__).parents[2] / "packaging/kubernetes"
TOKEN = "0" * LEAST_TOKEN
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def environment(container: dict[str, Any], rank: int) -> dict[str, str]:
    """Returns the variables of a pod, as Kubernetes fills them in."""
    results = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == INDEX
            results[variable["name"]] = str(rank)
        else:
            results[variable["name"]] = TOKEN if "secretKeyRef" in source else variable["value"]
    return results


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """Lists each kind of pod, with the variables that the operator adds."""
    _, job = manifests("job.yaml")
    for rank in range(job["spec"]["completions"]):
        yield f"job {rank}", job["spec"]["template"]["spec"], {"HOSTNAME": f"gnnkit-{rank}", "number": str(rank)}
    (kubeflow,) = manifests("pytorchjob.yaml")
    replicas = kubeflow["spec"]["pytorchReplicaSpecs"]
    size = str(sum(replica["replicas"] for replica in replicas.values()))
    for rank, kind in enumerate(("Master", "Worker")):
        assert replicas[kind]["replicas"] == 1
        place = {"RANK": str(rank), "WORLD_SIZE": size, "MASTER_ADDR": "gnnkit-master-0", "MASTER_PORT": "23456"}
        pet = {"PET_NNODES": size, "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "auto"}
        yield f"{kind} {rank}", replicas[kind]["template"]["spec"], {**place, **pet, "number": str(rank)}


@pytest.mark.slow
@pytest.mark.parametrize(("pod", "operator"), [pytest.param(*each[1:], id=each[0]) for each in pods()])
def test_a_pod_is_a_rank_with_keys_that_compose(
    pod: dict[str, Any], operator: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = pod["containers"]
    rank = int(operator.pop("number"))
    variables = {**operator, **environment(container, rank)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    place_in_run = started_rank()
    assert place_in_run is not None
    assert (place_in_run.rank, place_in_run.world_size, place_in_run.local_rank, place_in_run.local_world_size) == (
        rank,
        2,
        0,
        1,
    )
    assert place_in_run.variables()["GNNKIT_TOKEN"] == TOKEN
    assert not place_in_run.on_loopback
    settings = settle(compose(container["args"]))
    assert (settings.workers, settings.on_exists) == (2, "resume")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.output).startswith(mounts["runs"])
    assert {*mounts} == {volume["name"] for volume in pod["volumes"]}


def test_the_first_pod_has_the_name_at_which_all_meet() -> None:
    service, job = manifests("job.yaml")
    spec = job["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    variables = environment(container, 0)
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(variables["WORLD_SIZE"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert variables["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"


def test_the_image_runs_the_command_and_holds_the_wheel() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[-1]) == ["gnnkit"]
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    wheels = re.search(r"^COPY (\S+)/\*\.whl (\S+)", text, re.MULTILINE)
    assert wheels is not None
    assert wheels[1] == "dist"
    assert f"--find-links {wheels[2].rstrip('/')} gnnkit" in text
    version = re.search(r"^FROM python:(\S+)-slim", text, re.MULTILINE)
    assert version is not None
    assert version[1] in ("3.11", "3.12", "3.13")
