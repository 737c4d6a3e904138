(function () {
  const articles = [...document.querySelectorAll("article")];
  const search = document.getElementById("search");
  const selects = [...document.querySelectorAll("select")];
  const count = document.getElementById("count"), none = document.getElementById("none");
  const fields = [search, ...selects];
  const names = selects.map((select) => select.dataset.by);
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
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
