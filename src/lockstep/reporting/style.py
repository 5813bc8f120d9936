"""The page's style: one sheet, light and dark by what the reader's system says, nothing fetched."""

from __future__ import annotations

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #5b6576; --faint: #dfe3ea; --hair: #eceff4;
  --main: #3558d6; --second: #d9702b; --third: #1f9d7a; --good: #17845f; --poor: #b3472d; --gone: #c3cad5;
  --mark: #e6edff; --mark-ink: #17307f; --shadow: 0 1px 2px rgb(20 30 50 / 6%), 0 6px 20px rgb(20 30 50 / 5%);
  --outside: #7a8496; --prepare: #1f9d7a; --sft: #3558d6; --reward: #a4489e; --ppo: #d9702b; --evaluate: #5b6576;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151b; --card: #1a1e27; --ink: #e7eaf0; --soft: #9aa5b8; --faint: #313846; --hair: #262c38;
    --main: #8aa4ff; --second: #f3a06a; --third: #5fcfae; --good: #5fcfa0; --poor: #f08d75; --gone: #465063;
    --mark: #26366b; --mark-ink: #dbe4ff; --shadow: none;
    --outside: #8d98ab; --prepare: #5fcfae; --sft: #8aa4ff; --reward: #dc8fd6; --ppo: #f3a06a; --evaluate: #9aa5b8;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 48px 24px 80px; }
a { color: var(--main); }
h1 { font-size: clamp(28px, 4.4vw, 42px); line-height: 1.15; letter-spacing: -0.02em; margin: 4px 0 16px; }
h2 { font-size: 23px; letter-spacing: -0.01em; margin: 0 0 4px; }
h3 { font-size: 15px; margin: 0; }
p { margin: 0 0 10px; }
section { margin-top: 60px; }
.kicker { color: var(--main); font-weight: 650; letter-spacing: 0.04em; margin: 0; }
.lead { color: var(--soft); max-width: 68ch; margin-bottom: 18px; }
.note, figcaption { color: var(--soft); font-size: 13.5px; }
.label { color: var(--soft); font-size: 12.5px; margin: 0 0 4px; }
.facts { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap; gap: 4px 26px; }
.facts span { color: var(--soft); } .facts strong { font-weight: 600; }
nav { margin: 22px 0 0; display: flex; flex-wrap: wrap; gap: 6px 18px; font-size: 14.5px; }
nav a { text-decoration: none; } nav a:hover { text-decoration: underline; }
code, pre { font-family: ui-monospace, "SF Mono", "Cascadia Code", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: 0.86em; }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(196px, 1fr)); gap: 14px; margin-top: 30px; }
.tile, .card, .panel, .pair, .masked, .scroll, .commands, details {
  background: var(--card); border: 1px solid var(--faint); border-radius: 12px; box-shadow: var(--shadow); }
.tile { padding: 16px 18px 12px; }
.tile h3 { color: var(--soft); font-weight: 600; font-size: 14px; }
.tile .value { font-size: 26px; font-weight: 680; letter-spacing: -0.02em; margin: 4px 0 6px; white-space: nowrap; }
.tile .before { color: var(--soft); font-weight: 450; }
.tile.good .value { color: var(--good); } .tile.poor .value { color: var(--poor); }
.tile .note { margin: 0; line-height: 1.4; }
.interval { width: 100%; max-width: 220px; display: block; margin: 2px 0 6px; }
.interval .base { stroke: var(--faint); stroke-width: 2; } .interval .zero { stroke: var(--soft); stroke-width: 1.5; }
.interval .span { stroke: currentColor; stroke-width: 5; stroke-linecap: round; opacity: 0.35; }
.interval .mean { fill: currentColor; }
.tile.good .interval { color: var(--good); } .tile.poor .interval { color: var(--poor); }

.flow { list-style: none; margin: 0; padding: 0; display: grid; gap: 26px;
  grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); }
.flow > li { position: relative; display: flex; }
.flow > li:not(:last-child)::after { content: "→"; position: absolute; right: -20px; top: 14px; color: var(--soft); }
.card { padding: 14px 16px 10px; width: 100%; display: flex; flex-direction: column; }
.card.off { opacity: 0.55; box-shadow: none; }
.card .note { margin-bottom: 8px; } .card .figure { font-weight: 600; font-size: 14.5px; }
.card .foot { color: var(--soft); font-size: 12.5px; margin: auto 0 0; padding-top: 8px; }
.foot span { display: block; }
.dot::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 8px;
  background: var(--hue, var(--soft)); }
.chips { list-style: none; padding: 0; margin: 0 0 10px; display: flex; flex-wrap: wrap; gap: 5px; }
.chip { border: 1px solid var(--hue); border-radius: 6px; padding: 0 7px; font-size: 12.5px; line-height: 1.7; }
.chip code { color: var(--soft); }
.from-outside { --hue: var(--outside); } .from-prepare { --hue: var(--prepare); } .from-sft { --hue: var(--sft); }
.from-reward { --hue: var(--reward); } .from-ppo { --hue: var(--ppo); }

.group { margin: 22px 0 10px; font-size: 17px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 14px; }
.panel { margin: 0; padding: 12px 14px 8px; }
.panel figcaption { display: flex; justify-content: space-between; gap: 10px; margin-bottom: 4px; }
.panel .last { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.chart { width: 100%; display: block; } .chart text { fill: var(--soft); font-size: 12px; }
.chart .grid { stroke: var(--hair); } .chart .mark { stroke: var(--soft); stroke-dasharray: 3 4; stroke-width: 1.5; }
.line path { fill: none; stroke: var(--hue); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line .end { fill: var(--hue); } .line .spot { fill: var(--hue); opacity: 0; } .line .spot:hover { opacity: 0.9; }
.main { --hue: var(--main); } .second { --hue: var(--second); }
.third { --hue: var(--third); } .fourth { --hue: var(--reward); } .fifth { --hue: var(--outside); }
.gone { --hue: var(--gone); }
.legend { list-style: none; display: flex; gap: 16px; margin: 2px 0 4px; padding: 0 0 0 36px; font-size: 12.5px;
  color: var(--soft); }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; background: var(--hue); }

.scroll { overflow-x: auto; margin-bottom: 14px; }
.scroll:focus-visible { outline: 2px solid var(--main); }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; }
th, td { text-align: left; padding: 9px 14px; border-bottom: 1px solid var(--hair); vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 550; font-size: 13px; }
tbody th { font-weight: 600; white-space: nowrap; }
.num { font-variant-numeric: tabular-nums; white-space: nowrap; }
td small, td .chip { display: block; color: var(--soft); font-size: 12.5px; white-space: nowrap; }
td.num strong + small { margin-top: 2px; }
td.bar { min-width: 150px; vertical-align: middle; }
th .shares { margin-top: 8px; min-width: 130px; }
.lead + .legend { padding: 0; margin: 0 0 10px; }
tfoot td, tfoot th { border-top: 1px solid var(--faint); border-bottom: 0; font-weight: 600; }
.whole { word-break: break-all; display: inline-block; min-width: 22ch; }
.shares { display: flex; height: 10px; border-radius: 5px; overflow: hidden; background: var(--hair); }
.shares > span { background: var(--hue); }

.pair { padding: 16px 18px; margin-bottom: 14px; }
.prompt { font-weight: 600; } .prompt .label { font-weight: 400; margin-right: 4px; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 22px; }
.sides > div { border-left: 3px solid var(--hue); padding-left: 14px; }
.sides .reference { --hue: var(--gone); } .sides .policy { --hue: var(--main); }
blockquote { margin: 0 0 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
.scores { display: flex; gap: 18px; margin: 0; color: var(--soft); font-size: 13px; }
.scores strong { color: var(--ink); font-variant-numeric: tabular-nums; }
.masked { margin: 0 0 14px; padding: 14px 18px; }
.chat { margin: 0 0 8px; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13.5px; line-height: 1.65;
  color: var(--soft); }
mark { background: var(--mark); color: var(--mark-ink); border-radius: 3px; padding: 1px 2px;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
details { padding: 0 18px; margin-bottom: 10px; }
details > summary { cursor: pointer; padding: 11px 0; font-weight: 600; font-size: 15px; }
details[open] { padding-bottom: 14px; }
details .scroll, details .pair { border: 0; box-shadow: none; padding: 0; margin: 0 0 18px; }
.hardware { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; font-size: 14.5px; }
.hardware dt { color: var(--soft); } .hardware dd { margin: 0; }
.commands { padding: 16px 18px; overflow-x: auto; font-size: 14px; line-height: 1.7; margin: 0 0 14px; }
footer { margin-top: 60px; color: var(--soft); font-size: 13.5px; }
@media (max-width: 720px) { .sides { grid-template-columns: 1fr; } main { padding: 28px 16px 60px; }
  tbody th { white-space: normal; }
  .flow > li:not(:last-child)::after { content: none; } }
@media print { body { background: #fff; }
  .tile, .card, .panel, .pair, .scroll { break-inside: avoid; box-shadow: none; } }
"""
