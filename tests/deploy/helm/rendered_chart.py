"""Renders the chart with values that show all of it."""

import functools
import json
import pathlib
import re

import kubernetes_validate
import yaml

from deploy.helm import render

# Kinds of the Prometheus operator and cert-manager. Kubernetes has no schema of these kinds.
CUSTOM = {"Certificate", "ServiceMonitor", "PrometheusRule"}
# Besides the examples: the defaults, with the choice that they leave to whoever installs the chart,
# and everything that is optional.
INSECURE = {"security": {"insecure": True}}
GIVEN = yaml.safe_load(pathlib.Path(__file__).with_name("forms.yaml").read_text())
# To pods of every form.
ADDITIONS = GIVEN["additions"]
VALUES = {
    "defaults": INSECURE,
    **GIVEN["forms"],
    "dev": yaml.safe_load((render.CHART / "values-dev.yaml").read_text()),
    **{path.stem: yaml.safe_load(path.read_text()) for path in render.examples()},
}
for name in ("everything", "proxied"):
    VALUES[name] |= ADDITIONS
VALUES["added-to-a-sidecar"] = {**VALUES["sidecar"], "security": {"identitiesSecret": "identities"}, **ADDITIONS}


def merged(below, above):
    """Values over others, as Helm puts them."""
    both = {**below, **above}
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            both[name] = merged(below[name], value)
    return both


def documents(values, chart=render.CHART):
    for template, text in render.render(values, chart).items():
        if template.endswith(".yaml"):
            # In C: a thousand renderings are read.
            yield from filter(None, yaml.load_all(text, Loader=yaml.CSafeLoader))


@functools.cache
def forms():
    """(name, values, objects) of all VALUES, to be read only."""
    return [(name, values, list(documents(values))) for name, values in VALUES.items()]


@functools.cache
def kubernetes_versions():
    """The oldest that Chart.yaml allows, and the newest whose schemas are there."""
    chart = yaml.safe_load((render.CHART / "Chart.yaml").read_text())
    (oldest,) = re.findall(r"^>=(\d+\.\d+)\.0-0$", chart["kubeVersion"])
    return oldest, kubernetes_validate.utils.major_minor(kubernetes_validate.latest_version())


def kubernetes_takes(objects):
    """Raises what it says against one of them."""
    for document in objects:
        if document["kind"] not in CUSTOM:
            kubernetes_takes_document(json.dumps(document))


# Most objects are the same, whatever a value is.
@functools.cache
def kubernetes_takes_document(text):
    document = json.loads(text)
    for version in kubernetes_versions():
        # It takes an older schema where it hasn't got this one.
        assert kubernetes_validate.validate(document, version, strict=True) == version, document["kind"]


def is_own(container):
    """Not the user's."""
    return container["name"] in ("server", "proxy", "redis")


def server_count(objects):
    """The most servers that a StatefulSet of the release may have."""
    for scaler in of_kind("HorizontalPodAutoscaler", objects):
        return scaler["spec"]["maxReplicas"]
    ((document, _),) = [found for found in pods(objects) if "admin" in port_names(found[1])]
    return document["spec"]["replicas"]


def of_kind(kind, objects):
    return [document for document in objects if document["kind"] == kind]


def pods(objects):
    """The pod templates, with the object that holds each."""
    for document in objects:
        template = document.get("spec", {}).get("template")
        if template:
            yield document, template


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def servers(objects):
    """The containers of sis_server."""
    for _, template in pods(objects):
        yield from (container for container in containers(template) if container["name"] == "server")


def labels(template):
    return template["metadata"]["labels"]


def matches(selector, of):
    """Whether an object with these labels is selected."""
    assert set(selector) <= {"matchLabels"}, selector
    return selector.get("matchLabels", {}).items() <= of.items()


def selector(document):
    """Returns a document's pod selector, in the form that other kinds than Services use."""
    spec = document["spec"]
    if document["kind"] == "Service":
        return {"matchLabels": spec["selector"]}
    return spec["podSelector"] if "podSelector" in spec else spec["selector"]


def selected(document, objects):
    """The pod templates that a document is for."""
    return [template for _, template in pods(objects) if matches(selector(document), labels(template))]


def port_names(template):
    return {port["name"] for container in containers(template) for port in container.get("ports", [])}
