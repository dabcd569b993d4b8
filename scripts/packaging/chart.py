# SPDX-License-Identifier: Apache-2.0
"""Makes docs/start-times.svg from tests/bench/figures.md: start times of ivyrun compared with other launchers."""

import re
from xml.sax.saxutils import escape

# The bars: label, the first cells of the row in figures.md, and the peers by column of that row.
BARS = (
    ("2 processes on one host", ("`chrt -r 5", "`-n 2 /bin/true`"), {"÷ Hydra": "MPICH Hydra"}),
    ("32 processes on one host", ("`chrt -r 5", "`-n 32 /bin/true`"), {"÷ Hydra": "MPICH Hydra"}),
    ("16 hosts by ssh", ("`tests/bench/run ssh`", "16 hosts"),
     {"÷ Hydra": "MPICH Hydra", "÷ Open MPI": "Open MPI", "÷ other": "ssh"}),
    ("64 hosts by ssh", ("`tests/bench/run ssh --hosts 64`", "64 hosts"),
     {"÷ Hydra": "MPICH Hydra", "÷ Open MPI": "Open MPI", "÷ other": "ssh"}),
    ("16 hosts by agents, 64 workers", ("16", "4"), {"ivyrun ÷ `srun`": "srun"}),
    ("64 hosts by agents, 256 workers", ("64", "4"), {"ivyrun ÷ `srun`": "srun"}),
)
WIDTH, ROW, LEFT, SCALE, TOP = 760, 22, 330, 320, 62
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"
     font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="{title}">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="16" y="24" font-size="16" font-weight="600" fill="#1b1f24">{title}</text>
<text x="16" y="44" fill="#57606a">{method}</text>
"""
TITLE = "Time to start and end a job: ivyrun compared with other launchers"
METHOD = "Median time relative to each launcher (lower is faster; dashed line = equal)"


def rows_of(text):
    """Yields (columns of the table, cells) for every row of every table. "the same" is replaced by the row above."""
    columns, command = None, ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            columns = None
        elif columns is None:
            columns = cells
        elif not set(line) <= set("|- "):
            command = cells[0] = command if cells[0] == "the same" else cells[0]
            yield columns, cells


def ratios(text):
    """Yields (label, peer, ratio) of each bar. Of a range such as 1.01 – 1.05 it is the larger end."""
    for what, begins, peers in BARS:
        row = next((row for row in rows_of(text)
                    if all(cell.startswith(begin) for cell, begin in zip(row[1], begins)) and set(peers) <= set(row[0])
                    and (len(begins[0]) > 2 or row[1][0] == begins[0])), None)
        if row is None:
            raise SystemExit(f"scripts/docs: tests/bench/figures.md has no row {begins}")
        for column, peer in peers.items():
            # The quartiles follow the median in brackets.
            numbers = re.findall(r"\d+\.\d+", re.sub(r"\(.*?\)", "", row[1][row[0].index(column)]))
            # "2.10 × 1.50": the second number is what the first is a ratio to.
            own = numbers[:1] if "×" in row[1][row[0].index(column)] else numbers
            yield what, peer, max(map(float, own))


def make(text):
    bars = list(ratios(text))
    height = TOP + ROW * len(bars) + 24
    svg = HEAD.format(width=WIDTH, height=height, title=TITLE, method=METHOD)
    last = ""
    for index, (what, peer, ratio) in enumerate(bars):
        y = TOP + ROW * index
        shown, last = ("" if what == last else what), what
        width = round(min(ratio, 1.2) * SCALE)
        svg += (f'<text x="16" y="{y + 14}" fill="#1b1f24">{escape(shown)}</text>\n'
                f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end" fill="#57606a">÷ {escape(peer)}</text>\n'
                f'<rect x="{LEFT}" y="{y + 3}" width="{width}" height="{ROW - 8}" rx="2" fill="#2f81a8"/>\n'
                f'<text x="{LEFT + width + 6}" y="{y + 14}" fill="#1b1f24">{ratio:.2f}</text>\n')
    bottom = TOP + ROW * len(bars)
    svg += f'<path d="M{LEFT + SCALE} {TOP - 2}V{bottom}" stroke="#57606a" stroke-dasharray="3 3"/>\n'
    return svg + "</svg>\n"
