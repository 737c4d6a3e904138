"""How the page looks, on a screen, a phone and paper, and how it is searched."""

STYLE = """
:root { --ink: #1a1a1a; --grey: #595959; --rule: #d9d9d9; --blue: #0072b2; --red: #d55e00;
  color-scheme: light; }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1180px; padding: 1rem; color: var(--ink); background: #fff;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: .2rem 0 .6rem; }
h2 { font-size: 1.12rem; margin: 0 0 .25rem; line-height: 1.3; }
h2 small { display: inline-block; font-size: .8rem; font-weight: 600; color: #fff;
  background: #404040; border-radius: 3px; padding: .05rem .45rem; margin-right: .35rem; }
p { margin: .3rem 0; }
a { color: #005a8c; }
code { font: .86em ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.warning, .scaled { color: #7a3300; }
.scaled, .place, .verdict, .notes { font-size: .88rem; }
.place, .notes, .why, .published { color: var(--grey); }
.verdict { font-weight: 600; }
form { display: flex; flex-wrap: wrap; gap: .5rem .8rem; margin: .8rem 0; align-items: end; }
label { font-size: .8rem; color: var(--grey); display: flex; flex-direction: column; }
label.wide { flex: 1 1 16rem; }
input, select { font: inherit; font-size: 1rem; color: var(--ink); padding: .35rem .5rem;
  border: 1px solid #8c8c8c; border-radius: 4px; background: #fff; min-width: 7rem; }
input:focus-visible, select:focus-visible, a:focus-visible, summary:focus-visible,
.scroll:focus-visible { outline: 2px solid var(--blue); outline-offset: 1px; }
output { font-size: .85rem; color: var(--grey); padding-bottom: .5rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; font-size: .88rem;
  border-block: 1px solid var(--rule); padding: .5rem 0; }
nav a { display: inline-block; padding: .1rem .15rem; white-space: nowrap; }
article { padding: 1.2rem 0 1rem; border-bottom: 1px solid var(--rule); }
.scroll { overflow-x: auto; max-width: 100%; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid #ececec; }
thead th { border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
th.label, th[scope=row], table.runs th, table.runs td, .words { text-align: left; }
th[scope=row] { font-weight: 500; }
thead th { font-weight: 600; white-space: normal; min-width: 5rem; }
.words { white-space: normal; display: inline-block; max-width: 22rem; }
td i { color: var(--grey); font-style: normal; font-size: .8em; }
.published { font-size: .92em; }
.no { color: var(--grey); font-style: italic; }
.d { display: inline-block; padding: 0 .35rem; border-radius: 3px; font-size: .92em;
  border: 1px solid transparent; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.d.close { border-color: #bdbdbd; }
.d.above.mid { background: #cfe5f3; } .d.above.far { background: #0072b2; color: #fff; }
.d.below.mid { background: #fbdcc4; } .d.below.far { background: #b34f00; color: #fff; }
.legend { font-size: .85rem; color: var(--grey); }
.legend .d { margin-left: .3rem; }
.picture { display: block; overflow-x: auto; margin: .5rem 0; }
.picture img { display: block; max-width: 100%; height: auto; }
.notes, .claims { margin: .4rem 0; padding-left: 1.1rem; }
.claims { list-style: none; padding-left: 0; }
.claims li { margin: .25rem 0; }
.why { font-size: .86rem; }
.badge { display: inline-block; font-size: .8rem; padding: 0 .4rem; border-radius: 3px;
  border: 1px solid; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.badge.holds { background: #dceef8; border-color: var(--blue); color: #004b75; }
.badge.fails { background: #fde6d6; border-color: var(--red); color: #7a3300; }
.badge.unclear, .badge.absent { background: #f2f2f2; border-color: #8c8c8c; color: #404040; }
details { margin: .4rem 0; }
summary { cursor: pointer; color: #005a8c; font-size: .88rem; }
[hidden] { display: none !important; }
@media (max-width: 640px) {
  body { padding: .7rem; font-size: 16px; }
  .picture img { max-width: none; width: 560px; }
  label:not(.wide) { flex: 1 1 6rem; }
  label.wide { flex-basis: 100%; }
  select { width: 100%; min-width: 0; }
  nav a { padding: .35rem .3rem; }
  th, td { padding: .3rem .45rem; }
  th[scope=row]:first-child { position: sticky; left: 0; background: #fff; white-space: normal;
    max-width: 8.5rem; box-shadow: 1px 0 0 var(--rule); }
}
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  form, nav, .place a { display: none; }
  details:not([open]) { display: none; }
  a { color: inherit; text-decoration: none; }
  .scroll, .picture { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { white-space: normal; padding: .15rem .3rem; }
  thead th { min-width: 0; }
  h2, tr, img, .claims li { break-inside: avoid; }
  h2, .place, .verdict, .scaled { break-after: avoid; }
  .picture img { max-height: 20cm; }
}
"""

SCRIPT = """
(function () {
  const articles = [...document.querySelectorAll("article")];
  const search = document.getElementById("search");
  const selects = [...document.querySelectorAll("select")];
  const count = document.getElementById("count"), none = document.getElementById("none");
  const fields = [search, ...selects];
  const names = selects.map((select) => select.dataset.by);
  function filter() {
    const words = search.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    for (const article of articles) {
      const has = words.every((word) => article.dataset.text.includes(word)) &&
        selects.every((select) => !select.value ||
          article.dataset[select.dataset.by].split(" ").includes(select.value));
      article.hidden = !has;
      document.querySelector(`nav a[href="#${article.id}"]`).hidden = !has;
      shown += has;
    }
    for (const group of document.querySelectorAll("nav span")) {
      group.hidden = !group.querySelector("a:not([hidden])");
    }
    none.hidden = shown > 0;
    count.textContent = `${shown} of ${articles.length} shown`;
    const query = new URLSearchParams();
    fields.forEach((field, i) => {
      if (field.value) query.set(i ? names[i - 1] : "search", field.value);
    });
    const text = query.toString();
    try {
      history.replaceState(null, "", (text ? "?" + text : location.pathname) + location.hash);
    } catch (error) { /* a page opened from a file may not rewrite its address everywhere */ }
  }
  const asked = new URLSearchParams(location.search);
  fields.forEach((field, i) => {
    field.value = asked.get(i ? names[i - 1] : "search") || "";
    field.addEventListener("input", filter);
  });
  filter();
})();
"""
