"""Writes manifests from the chart, for people without Helm.

    python3 -m deploy.grafana.generate
    python3 -m venv venv && venv/bin/pip install --no-deps -r deploy/helm/requirements.txt
    venv/bin/python deploy/helm/render.py FOLDER

Writes kubernetes-EXAMPLE.yaml for each of the chart's examples, with the release called
sis-ratio-service in the namespace rl.
"""

import argparse
import pathlib

import helm_python
import yaml

CHART = pathlib.Path(__file__).parent / "sis-ratio-service"
RELEASE, NAMESPACE = "sis-ratio-service", "rl"


def examples():
    return sorted((CHART / "examples").glob("*.yaml"))


def render(values, folder=CHART):
    """Returns the text that Helm would install, by template. Values are a dict, as in values.yaml."""
    with helm_python.Chart.load(str(folder)) as chart:
        return chart.render(values, name=RELEASE, namespace=NAMESPACE)


def manifest(example):
    """One YAML stream that kubectl applies; what `helm test` starts is not for it."""
    lines = [f"# {example.name} of the chart, as deploy/helm/render.py writes it."]
    for template, text in sorted(render(yaml.safe_load(example.read_text())).items()):
        if template.endswith(".yaml") and "/templates/tests/" not in template and text.strip():
            lines += ["---", text.strip().removeprefix("---").strip()]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for example in examples():
        (folder / f"kubernetes-{example.name}").write_text(manifest(example))


if __name__ == "__main__":
    main()
