"""Values that the chart passes on to Kubernetes as they are: what Kubernetes would refuse of them, or leave out
without a word, the chart refuses by name.

Run by chart_test.py, in an environment that has Helm and Kubernetes' schemas."""

import pathlib
import unittest

import helm_python
import yaml

from deploy.helm import render
from tests.deploy.helm.rendered_chart import INSECURE, VALUES, documents, kubernetes_takes, merged

GIVEN = yaml.safe_load(pathlib.Path(__file__).with_name("passed_on_values.yaml").read_text())
VOLUMES = [{"name": "a", "configMap": {"name": "b"}}]


def spoilt(value):
    """Yields copies of the value that differ in one place: another value, or one name more or less."""
    yield {"banana": 1} if isinstance(value, (str, int)) else "banana"
    if isinstance(value, list):
        for i, part in enumerate(value):
            yield from (value[:i] + [other] + value[i + 1 :] for other in spoilt(part))
    if isinstance(value, dict):
        yield {**value, "banana": {}}
        for name, part in value.items():
            yield {other: value[other] for other in value if other != name}
            yield from ({**value, name: other} for other in spoilt(part))


def in_groups(name, value):
    for group in reversed(name.split(".")):
        value = {group: value}
    return value


def values_with(name, value):
    """Returns values with `name` set, in a form of the chart in which it has an effect."""
    form = VALUES["sidecar"] if name.startswith("sidecar.") else INSECURE
    return merged({**form, "extraVolumes": VOLUMES}, in_groups(name, value))


class PassedOnChecks(unittest.TestCase):
    def test_what_is_rendered_of_them_kubernetes_takes(self):
        for name, value in GIVEN["passed_on"].items():
            refused = 0
            for given in (value, *spoilt(value)):
                with self.subTest(name=name, value=given):
                    try:
                        objects = list(documents(values_with(name, given)))
                    except helm_python.HelmError as error:
                        self.assertNotEqual(given, value)
                        self.assertIn(name.replace(".", "/"), str(error))
                        refused += 1
                        continue
                    kubernetes_takes(objects)
            self.assertGreater(refused, 0)

    def test_what_contradicts_itself_is_refused(self):
        for name, values in GIVEN["contradictions"].items():
            for value in values:
                with self.subTest(name=name, value=value), self.assertRaises(helm_python.HelmError) as refused:
                    render.render(values_with(name, value))
                self.assertRegex(str(refused.exception), name.replace(".", "[./]"))


if __name__ == "__main__":
    unittest.main()
