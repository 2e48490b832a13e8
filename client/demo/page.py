"""The frame of a report: one HTML file that needs nothing but itself."""

import html

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>SIS ratio service: what the demonstration measured</title>
<style>
:root {{
  color-scheme: light dark;
  --page: #f9f9f7; --surface: #fcfcfb; --ink: #0b0b0b; --muted: #52514e; --grid: #e4e3df; --axis: #8f8e88;
  --first: #6b6a66; --second: #2a78d6; --third: #d4551f; --fourth: #2f8f5b;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --page: #0d0d0d; --surface: #1a1a19; --ink: #ffffff; --muted: #c3c2b7; --grid: #343431; --axis: #7c7b75;
    --first: #a5a49b; --second: #5b9df0; --third: #ee7b48; --fourth: #55c08a;
  }}
}}
body {{ margin: 0 auto; padding: 24px 16px 48px; max-width: 1040px; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 26px; line-height: 1.25; margin: 0 0 8px; }}
h2 {{ font-size: 18px; margin: 0; }}
h3 {{ font-size: 14px; font-weight: 600; margin: 0; color: var(--muted); }}
p {{ max-width: 70ch; }}
figure, .card {{ margin: 20px 0; padding: 16px 20px; background: var(--surface); border: 1px solid var(--grid);
  border-radius: 8px; }}
figcaption {{ color: var(--muted); font-size: 14px; max-width: 80ch; }}
.panels {{ display: flex; flex-wrap: wrap; gap: 8px 24px; margin: 8px 0; }}
.panel {{ flex: 1 1 380px; min-width: 0; overflow-x: auto; }}
.panel > svg {{ display: block; width: 100%; height: auto; }}
.point:hover use {{ fill-opacity: 0.35 !important; }}
.scroll {{ overflow-x: auto; }}
table {{ margin: 8px 0 20px; border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 6px 20px 6px 0; text-align: left; border-bottom: 1px solid var(--grid); }}
pre {{ overflow-x: auto; font-size: 13px; margin: 8px 0 0; }}
</style>
</head>
<body>
<h1>{heading}</h1>
<p>{setting}</p>
{cards}
{figures}
<div class="card"><h2>What the server counted</h2><p>Some lines of its <code>/metrics</code> after the last run.</p>
<pre>{metrics}</pre></div>
</body>
</html>
"""


def write(path, heading, setting, cards, figures, metrics):
    """heading and setting are text. cards: of card(). figures: of charts.figure(). metrics: lines of
    a server's /metrics."""
    page = _PAGE.format(
        heading=html.escape(heading),
        setting=html.escape(setting),
        cards="\n".join(cards),
        figures="\n".join(figures),
        metrics=html.escape("\n".join(metrics)),
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def card(heading, content):
    """A frame with text above `content`, which is HTML."""
    return f'<div class="card"><h2>{html.escape(heading)}</h2>{content}</div>'


def paragraph(text):
    return f"<p>{html.escape(text)}</p>"


def table(rows):
    """Rows of text, a heading first."""
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in body:
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    return '<div class="scroll"><table>' + "".join(lines) + "</table></div>"
