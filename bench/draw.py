#!/usr/bin/env python3
"""Draws docs/performance.svg from the table "Cycles per second" of docs/performance.md.

    bench/draw.py            writes the picture
    bench/draw.py --check    fails if the picture isn't the one that the table makes
"""

import argparse
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
TABLE = DOCS / "performance.md"
PICTURE = DOCS / "performance.svg"

# Which cell of a row each series is in, and what the picture calls it.
SERIES = [
    (1, "raw", "hiredis, a connection per thread"),
    (2, "release", "redlease, release()"),
    (4, "scope", "redlease, end of the scope"),
]

WIDTH, HEIGHT = 800, 380
LEFT, RIGHT, TOP, BOTTOM = 20, 20, 96, 52
BAR = 44

# Colours that can be told apart on white and on black; the text follows the reader's scheme.
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #24292f; }
    .title { font-size: 17px; font-weight: 600; }
    .value { font-size: 11px; text-anchor: middle; }
    .group { text-anchor: middle; }
    .axis { stroke: #8c959f; }
    .raw { fill: #8c959f; }
    .release { fill: #218bff; }
    .scope { fill: #2da44e; }
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
"""


def read_rows(text):
    """The rows of the table, as (threads, [figure of each series])."""
    section = re.search(r"^### Cycles per second\n(.*?)^(?:###|hiredis with)", text, re.M | re.S)
    if section is None:
        sys.exit(f"{TABLE}: there is no section 'Cycles per second'")
    rows = []
    for line in section.group(1).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdigit():
            rows.append((cells[0], [int(cells[at].replace(",", "")) for at, _, _ in SERIES]))
    if not rows:
        sys.exit(f"{TABLE}: the table 'Cycles per second' has no rows")
    return rows


def draw_bar(x, figure, kind, scale):
    height = round(figure * scale, 1)
    y = round(HEIGHT - BOTTOM - height, 1)
    return [
        f'  <rect class="{kind}" x="{x}" y="{y}" width="{BAR}" height="{height}" rx="2"/>',
        f'  <text class="value" x="{x + BAR / 2:g}" y="{round(y - 5, 1)}">{figure:,}</text>',
    ]


def draw(rows):
    scale = (HEIGHT - TOP - BOTTOM) / max(max(figures) for _, figures in rows)
    base = HEIGHT - BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        ' aria-labelledby="title">',
        "  <!-- Drawn by bench/draw.py from docs/performance.md. -->",
        f"  <style>{STYLE}  </style>",
        '  <text id="title" class="title" x="20" y="28">'
        "Leases acquired and given back per second, by number of threads</text>",
    ]
    x = LEFT
    for _, kind, name in SERIES:
        lines.append(f'  <rect class="{kind}" x="{x}" y="46" width="12" height="12" rx="2"/>')
        lines.append(f'  <text x="{x + 18}" y="57">{name}</text>')
        x += 42 + 7 * len(name)
    group_width = (WIDTH - LEFT - RIGHT) / len(rows)
    for n, (threads, figures) in enumerate(rows):
        middle = LEFT + group_width * (n + 0.5)
        x = round(middle - (BAR * len(figures)) / 2, 1)
        for (_, kind, _), figure in zip(SERIES, figures):
            lines += draw_bar(x, figure, kind, scale)
            x = round(x + BAR, 1)
        noun = "thread" if threads == "1" else "threads"
        lines.append(
            f'  <text class="group" x="{middle:g}" y="{base + 20}">{threads} {noun}</text>'
        )
    lines.append(f'  <line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>')
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    arguments = parser.parse_args()
    picture = draw(read_rows(TABLE.read_text(encoding="utf-8")))
    if not arguments.check:
        PICTURE.write_text(picture, encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture:
        sys.exit(f"{PICTURE} doesn't show the figures of {TABLE}: run bench/draw.py")


if __name__ == "__main__":
    main()
