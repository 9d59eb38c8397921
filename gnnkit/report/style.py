"""Colours and style of the page."""

from __future__ import annotations

# Ink on paper, and ten colours that are told apart, also by most colour-blind people.
LIGHT = {
    "paper": "#ffffff", "panel": "#f6f7f9", "ink": "#1b1f24", "muted": "#59636e", "grid": "#d9dee3", "shade": "#5f7590",
    "c0": "#3b6fd4", "c1": "#e08214", "c2": "#2a9d6f", "c3": "#d1495b", "c4": "#8e5bd0",
    "c5": "#1b9fb5", "c6": "#a8701f", "c7": "#e06fae", "c8": "#7a8b16", "c9": "#6b7785",
}  # fmt: skip
DARK = {
    "paper": "#14171a", "panel": "#1d2125", "ink": "#e8eaed", "muted": "#a3adb8", "grid": "#363c43", "shade": "#54708f",
    "c0": "#7aa5f5", "c1": "#f2a44b", "c2": "#5cc79b", "c3": "#f0808e", "c4": "#b794f0",
    "c5": "#59cbdd", "c6": "#cf9c52", "c7": "#f29fcc", "c8": "#b3c44a", "c9": "#9aa6b3",
}  # fmt: skip

_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark}
body{margin:0 auto;padding:1.2rem 1rem 3rem;max-width:88rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.2rem 0 .4rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--grid)}
p{margin:.4rem 0;max-width:60rem}
code{font:.86em ui-monospace,"DejaVu Sans Mono",monospace;background:var(--panel);padding:.1em .35em;border-radius:4px}
.muted{color:var(--muted)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.7rem,1fr));gap:.7rem;margin:1rem 0}
.card{background:var(--panel);border-radius:8px;padding:.55rem .8rem}
.card b{display:block;font-size:1.3rem;font-variant-numeric:tabular-nums}
.card span{color:var(--muted);font-size:.82rem}
.figures{columns:24rem;column-gap:1.2rem}
figure,.panel{break-inside:avoid;margin:0 0 1.2rem;background:var(--panel);border-radius:8px;padding:.7rem .8rem .8rem}
figure h3,.panel h3{font-size:.98rem;margin:0 0 .3rem}
figcaption{color:var(--muted);font-size:.82rem;line-height:1.4;margin-top:.3rem}
svg{display:block;width:100%;height:auto;font-family:inherit}
.scroll{overflow-x:auto;background:linear-gradient(to left,var(--panel) 30%,transparent) right/2.5rem 100% no-repeat local,
linear-gradient(to left,var(--muted),transparent) right/.5rem 100% no-repeat scroll}
body>.scroll,body>details .scroll{background:none}
table{border-collapse:collapse;font-size:.88rem;overflow-wrap:normal}
th,td{padding:.22rem .8rem .22rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid);font-weight:400}
thead th{font-weight:600;white-space:nowrap}
tbody th{color:var(--muted);min-width:6rem;max-width:16rem;overflow-wrap:anywhere}
td{min-width:4rem;max-width:44rem;overflow-wrap:anywhere}
td.number,th.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;padding-left:.8rem}
li{margin:.45rem 0;max-width:60rem}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--muted)}
pre{overflow-x:auto;background:var(--panel);border-radius:8px;padding:.8rem;font:.8rem/1.45 ui-monospace,"DejaVu Sans Mono",monospace}
figure{position:relative}
.figures svg:has(.plot){touch-action:pan-y;cursor:crosshair}
.tip{display:none;position:absolute;z-index:1;pointer-events:none;background:var(--paper);color:var(--ink);border:1px solid var(--grid);
border-radius:6px;padding:.3rem .55rem;font-size:.8rem;line-height:1.35;white-space:nowrap;font-variant-numeric:tabular-nums}
.tip div{padding-left:.4em;margin-top:.15rem}
.all{display:none;position:absolute;right:.6rem;top:.6rem;font:inherit;font-size:.8rem;color:var(--ink);background:var(--paper);
border:1px solid var(--grid);border-radius:6px;cursor:pointer}
.choice{display:none;color:var(--muted);font-size:.86rem}
.choice label{margin-right:.8rem;cursor:pointer}
.script .choice{display:block}
.script .sortable thead th{cursor:pointer}
.sortable thead th[aria-sort=descending]::after{content:" \\2193"}
.sortable thead th[aria-sort=ascending]::after{content:" \\2191"}
.wide{margin-top:1.2rem}
.wide .scroll{max-height:26rem;overflow:auto}
.wide thead th{position:sticky;top:0;background:var(--panel)}
a{color:var(--c0)}
#live{font-weight:600}
@media(max-width:34rem){.wide table{font-size:.78rem}.wide thead th{white-space:normal;vertical-align:bottom}
.wide td.number,.wide th.number{padding:.22rem 0 .22rem .4rem;min-width:0}.wide tbody th{min-width:4rem;max-width:7rem;padding-right:0}}
@media print{body{max-width:none}figure{break-inside:avoid}}
"""


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


STYLE = f":root{{{_variables(LIGHT)}}}@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}{_RULES}"
