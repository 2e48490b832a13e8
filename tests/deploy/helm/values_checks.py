"""values.yaml and its schema: what is said of each value, and which values are refused.

Run by chart_test.py, in an environment that has Helm."""

import json
import pathlib
import re
import unittest

import helm_python
import yaml

from deploy.helm import render
from tests.deploy.helm.rendered_chart import VALUES

GIVEN = yaml.safe_load(pathlib.Path(__file__).with_name("refused_values.yaml").read_text())


def leaves(node, above=None, name=""):
    """Yields the name and line of each value of a YAML mapping, and the line of its group."""
    for key, value in node.value:
        place, line = f"{name}{key.value}", key.start_mark.line
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield from leaves(value, line, place + ".")
        else:
            yield place, line, above


def comment_above(lines, line):
    """The comment that ends directly above a line."""
    first = line
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first:line])


class ValuesChecks(unittest.TestCase):
    def test_the_schema_knows_every_value_and_no_other(self):
        def names(values, place=""):
            for name, value in values.items():
                yield place + name
                if isinstance(value, dict):
                    yield from names(value, f"{place}{name}.")

        def known(schema, place=""):
            for name, part in schema.get("properties", {}).items():
                yield place + name
                yield from known(part, f"{place}{name}.")

        schema = json.loads((render.CHART / "values.schema.json").read_text())
        defaults = yaml.safe_load((render.CHART / "values.yaml").read_text())
        free = ("dashboards.labels.", "flags.")  # whose names are not the chart's
        has, knows = ({name for name in all if not name.startswith(free)} for all in (names(defaults), known(schema)))
        self.assertEqual(has, knows - {"global"})

    def test_a_comment_says_what_each_value_is(self):
        """On its line, directly above it, or above its group if it names the value."""
        text = (render.CHART / "values.yaml").read_text()
        lines = text.splitlines()
        found = list(leaves(yaml.compose(text)))
        self.assertGreater(len(found), 70)
        for name, line, group in found:
            with self.subTest(value=name):
                own = comment_above(lines, line) or re.search(r"\s#\s", lines[line])
                key = name.split(".")[-1]
                above = re.search(rf"\b{key}\b", comment_above(lines, group)) if group else None
                self.assertTrue(own or above, f"values.yaml:{line + 1}")

    def test_nonsense_is_refused_by_name(self):
        for name, values in GIVEN["nonsense"]:
            with self.subTest(values=values):
                with self.assertRaises(helm_python.HelmError) as refused:
                    render.render(values)
                self.assertIn(name, str(refused.exception))

    def test_nothing_else_is_refused(self):
        for values in (*VALUES.values(), *GIVEN["sensible"]):
            with self.subTest(values=values):
                render.render(values)


if __name__ == "__main__":
    unittest.main()
