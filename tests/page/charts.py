"""Reads the charts of the server's page."""

# The lines of the chart of this name: {name: values}, and what its axis shows.
_CHART = """
const panel = [...document.querySelectorAll(".panel")].find(
    panel => panel.getAttribute("aria-label") === arguments[0]);
const chart = panel && Chart.getChart(panel.querySelector("canvas"));
if (!chart) return null;
return {names: chart.data.labels.map(String),
        lines: Object.fromEntries(chart.data.datasets.map(line => [line.label, line.data.map(at => at?.y ?? at)])),
        places: chart.data.datasets.map(line => line.data.map(at => at?.x ?? null))};
"""


def chart(browser, title):
    """{"names": of the values, "lines": {name: values}, "places": of each line, on an axis of numbers}."""
    drawn = browser.run(_CHART, title)
    if drawn is None:
        raise AssertionError(f"no chart {title!r}")
    return drawn
