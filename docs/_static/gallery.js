/* Search and choices of the gallery, kept in the page's address. Every word and choice has to fit. */
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector(".gallery-form");
  if (!form) return;
  const cards = [...document.querySelectorAll(".gallery .card")];
  const search = form.querySelector("input"), selects = [...form.querySelectorAll("select")];
  const count = form.querySelector("output"), none = document.querySelector(".gallery-none");
  const names = ["search", ...selects.map((select) => select.dataset.by)];
  const fields = [search, ...selects];
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const card of cards) {
      card.hidden = !(words.every((word) => card.dataset.text.includes(word)) &&
        selects.every((select) => !select.value ||
          card.dataset[select.dataset.by].split("|").includes(select.value)));
      shown += !card.hidden;
    }
    none.hidden = shown > 0;
    count.textContent = `${shown} of ${cards.length} shown`;
    const query = new URLSearchParams();
    fields.forEach((field, i) => { if (field.value) query.set(names[i], field.value); });
    const text = query.toString();
    try {
      history.replaceState(null, "", (text ? "?" + text : location.pathname) + location.hash);
    } catch (error) { /* a page opened from a file may not rewrite its address everywhere */ }
  }
  const asked = new URLSearchParams(location.search);
  fields.forEach((field, i) => {
    field.value = asked.get(names[i]) || "";
    field.addEventListener("input", filter);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
});
