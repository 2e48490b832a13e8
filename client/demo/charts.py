"""Line charts as inline SVG. Colours are CSS variables of the page, so that they follow its light or dark mode."""

import dataclasses
import html
import math
from typing import Optional, Sequence

# Of one chart among several side by side, and of one that stands alone.
NARROW, WIDE = 480, 960
_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 46


@dataclasses.dataclass(frozen=True)
class Line:
    name: str
    # Of the stylesheet: which colour, and whether dashed.
    style: str
    x: Sequence[float]
    y: Sequence[float]
    # A band around it.
    low: Optional[Sequence[float]] = None
    high: Optional[Sequence[float]] = None


def _step(span, count):
    """The round distance that puts about `count` ticks on `span`."""
    raw = span / count
    power = 10 ** math.floor(math.log10(raw))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= raw)


def _linear_ticks(low, high):
    step = _step(high - low, 5)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _powers(low, high):
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _number(value, form):
    return form.format(0.0 if abs(value) < 1e-12 else value)


def panel(title, x_title, y_title, lines, form="{:g}", log=False, y_range=None, x_ticks=None, width=NARROW):
    """One chart with axes, as an <svg>. `form` writes the values of y.

    log: a logarithmic y axis, for positive values. y_range: else from the data; whole ticks in any case.
    """
    values = [v for line in lines for part in (line.y, line.low, line.high) if part is not None for v in part]
    x_low, x_high = min(min(line.x) for line in lines), max(max(line.x) for line in lines)
    if x_high == x_low:
        x_high = x_low + 1
    if log:
        ticks = _powers(min(values), max(values))
        y_low, y_high = ticks[0], max(ticks[-1], ticks[0] * 10)
    else:
        y_low, y_high = y_range or (min(values), max(values))
        if y_high == y_low:
            y_high = y_low + 1
        step = _step(y_high - y_low, 5)
        y_low, y_high = math.floor(y_low / step + 1e-9) * step, math.ceil(y_high / step - 1e-9) * step
        ticks = _linear_ticks(y_low, y_high)

    def place_x(value):
        return _LEFT + (value - x_low) / (x_high - x_low) * (width - _LEFT - _RIGHT)

    def place_y(value):
        if log:
            part = math.log(value / y_low) / math.log(y_high / y_low)
        else:
            part = (value - y_low) / (y_high - y_low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    def points(x, y):
        return " ".join(f"{place_x(a):.1f},{place_y(b):.1f}" for a, b in zip(x, y))

    # Small screens scroll: smaller text could not be read.
    parts = [
        f'<svg viewBox="0 0 {width} {_HEIGHT}" style="min-width: {0.7 * width:.0f}px" role="img" '
        f'aria-label="{html.escape(title)}">'
    ]
    for tick in ticks:
        y = place_y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(tick, form)}</text>')
    for tick in x_ticks or _linear_ticks(x_low, x_high):
        parts.append(
            f'<text class="tick" x="{place_x(tick):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
        )
    base = _HEIGHT - _BOTTOM
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{base}" y2="{base}"/>')
    middle_x, middle_y = (_LEFT + width - _RIGHT) / 2, (_TOP + base) / 2
    parts.append(
        f'<text class="title" x="{middle_x}" y="{_HEIGHT - 6}" text-anchor="middle">{html.escape(x_title)}</text>'
        f'<text class="title" x="14" y="{middle_y}" text-anchor="middle" transform="rotate(-90 14 {middle_y})">'
        f"{html.escape(y_title)}</text>"
    )
    for line in lines:
        if line.low is not None:
            band = points(line.x, line.high) + " " + points(line.x[::-1], line.low[::-1])
            parts.append(f'<polygon class="band {line.style}" points="{band}"/>')
    for line in lines:
        parts.append(f'<polyline class="line {line.style}" points="{points(line.x, line.y)}"/>')
    for line in lines:
        for x, y in zip(line.x, line.y):
            label = html.escape(f"{line.name}, {x_title} {x:g}: {form.format(y)}")
            parts.append(
                f'<circle class="point" cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="6"><title>{label}</title></circle>'
            )
    parts.append("</svg>")
    return "".join(parts)


def figure(name, heading, caption, panels, legend):
    """A <figure> of one or two charts: panels are (subtitle, svg), legend is (name, style) pairs."""
    keys = "".join(
        f'<span class="key"><svg viewBox="0 0 24 8"><line class="line {style}" x1="0" x2="24" y1="4" y2="4"/></svg>'
        f"{html.escape(text)}</span>"
        for text, style in legend
    )
    charts = "".join(
        f'<div class="panel">{f"<h3>{html.escape(subtitle)}</h3>" if subtitle else ""}{svg}</div>'
        for subtitle, svg in panels
    )
    return (
        f'<figure id="{name}"><h2>{html.escape(heading)}</h2><div class="legend">{keys}</div>'
        f'<div class="panels">{charts}</div><figcaption>{html.escape(caption)}</figcaption></figure>'
    )
