"""What ``deploy/`` has: manifests valid by their schemas, examples that load, READMEs to be followed."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from kedrl_dask.engine.clusters.descriptions import KINDS
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.service.config import load_config
from kedrl_dask.service.schedule import load_schedule
from kedrl_dask.utils.process import Stopped
from tests.test_architecture import PACKAGE

DEPLOY = PACKAGE.parent / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
#: The oldest Kubernetes that is still maintained has all that the manifests ask for.
KUBERNETES_VERSION = "1.31"
MANIFESTS = [
    pytest.param(document, id=f"{file.name}-{document['kind']}")
    for file in sorted(KUBERNETES.glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]


@cache
def schema_of(kind):
    """Schema of one of the operator's own kinds, as its installation has it; unknown keys are refused."""
    crds = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definition = yaml.safe_load((crds / f"{kind.lower()}.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    return strict(version["schema"]["openAPIV3Schema"])


def strict(schema):
    """Kubernetes drops keys that its schema does not have: here they are errors."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        found.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    return found


def validate(document):
    if not document["apiVersion"].startswith("kubernetes.dask.org/"):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
        return
    body = {key: value for key, value in document.items() if key not in ("apiVersion", "kind", "metadata")}
    jsonschema.validate(body, schema_of(document["kind"]))


def pod_specs(node):
    """Every specification of a pod in a manifest."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from pod_specs(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_specs(value)


@pytest.mark.slow
@pytest.mark.parametrize("document", MANIFESTS)
def test_manifest__is_valid(document):
    validate(document)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cluster.yaml", lambda d: d["spec"]["worker"].update(replica=2)),
        ("cluster.yaml", lambda d: d["spec"]["worker"].update(replicas="two")),
        ("cluster.yaml", lambda d: d["spec"]["worker"]["spec"]["containers"][0].update(arg=["dask"])),
        ("job.yaml", lambda d: d["spec"].pop("cluster")),
        ("job.yaml", lambda d: d["spec"]["job"]["spec"].update(restart="Never")),
        ("schedule.yaml", lambda d: d["spec"].pop("schedule")),
        ("schedule.yaml", lambda d: d["spec"].update(concurrency="Forbid")),
    ],
)
def test_manifest__a_slip_is_found(name, change):
    """The schemas do refuse."""
    document = next(yaml.safe_load_all((KUBERNETES / name).read_text()))
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


@pytest.mark.parametrize("document", MANIFESTS)
def test_pods__are_bounded_and_unprivileged(document):
    for spec in pod_specs(document):
        assert spec["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        for container in spec["containers"]:
            assert "memory" in container["resources"]["limits"]
            assert "cpu" in container["resources"]["requests"]
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes


def test_manifests__agree_with_each_other():
    documents = [parameter.values[0] for parameter in MANIFESTS]
    by_kind = {document["kind"]: document for document in documents}
    names = {by_kind["DaskCluster"]["metadata"]["name"], by_kind["DaskJob"]["metadata"]["name"]}
    (selector,) = by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchExpressions"]
    assert set(selector["values"]) == names
    for document, spec in (
        (by_kind["DaskCluster"], by_kind["DaskCluster"]["spec"]),
        (by_kind["DaskJob"], by_kind["DaskJob"]["spec"]["cluster"]["spec"]),
    ):
        assert (
            spec["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == document["metadata"]["name"]
        )
    claim = by_kind["PersistentVolumeClaim"]["metadata"]["name"]
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for document in documents
        for spec in pod_specs(document)
        for volume in spec.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    assert claims == {claim}
    images = {
        container["image"]
        for document in documents
        for spec in pod_specs(document)
        for container in spec["containers"]
    }
    (image,) = images
    assert f"-t {image} ." in (KUBERNETES / "Containerfile").read_text()
    account = by_kind["ServiceAccount"]["metadata"]["name"]
    template = by_kind["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]
    assert template["spec"]["serviceAccountName"] == account
    labels = template["metadata"]["labels"].items()
    allowed = by_kind["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert any(labels >= peer.get("podSelector", {}).get("matchLabels", {"": ""}).items() for peer in allowed)


@pytest.mark.parametrize("folder", ["kubernetes", "schedule", "slurm"])
def test_config__can_be_evaluated_on_a_schedule(folder):
    found = load_schedule(DEPLOY / folder / "config.toml")
    assert found.output.name == "evaluations"
    assert len(found.state) == 2


@pytest.mark.parametrize("folder", ["local", "slurm", "kubernetes"])
def test_example__describes_a_run_on_its_kind(folder):
    found = load_config(DEPLOY / folder / "config.toml")
    assert found.cluster.kind == folder


@pytest.mark.filterwarnings("ignore:unclosed cluster KubeCluster:ResourceWarning")
def test_kubernetes__that_cannot_be_reached_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    message = message_of(load_config(KUBERNETES / "config.toml").cluster)
    gc.collect()  # dask-kubernetes leaves an object that complains when it goes: here, not in another test
    assert "cluster.yaml: the Kubernetes cluster could not be created (" in message
    assert "that Dask's operator is installed" in message


def message_of(described):
    """Why a cluster cannot be opened; the error itself, which holds on to everything, is let go."""
    with pytest.raises(Stopped) as caught, open_cluster(described, patience=1):
        pass
    return str(caught.value)


def test_container__installs_what_the_package_is():
    """Files that it copies are there, and those that the build needs are copied."""
    lines = (KUBERNETES / "Containerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert all((DEPLOY.parent / name).exists() for name in copied)
    assert {"pyproject.toml", "README.md", "LICENSE", "kedrl_dask"} <= copied


def test_index__links_lead_somewhere_and_kinds_are_known():
    text = (DEPLOY / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (DEPLOY / link).exists(), link
    assert set(re.findall(r'`kind = "(\w+)"`', text)) <= set(KINDS)
    assert {"threads", "local", "slurm", "pbs", "kubernetes", "address"} <= set(
        re.findall(r'`kind = "(\w+)"`', text)
    )


def shell_blocks(readme):
    """Commands of a README, block by block."""
    return re.findall(r"^```sh\n(.*?)^```", readme.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sbatch")), ids=lambda path: path.name)
def test_script__bash_can_read(script):
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)


@pytest.mark.slow
def test_local__the_readme_is_followed(tmp_path, monkeypatch):
    monkeypatch.setenv("KEDRL", str(PACKAGE.parent))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    for block in shell_blocks(DEPLOY / "local" / "README.md"):
        subprocess.run(["bash", "-euc", block], cwd=tmp_path, check=True, timeout=500, capture_output=True)
    assert (tmp_path / "run" / "model").is_dir()
