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
  function key(row, column) {
    const cell = row.cells[column], text = cell.textContent.trim();
    const number = Number(cell.dataset.value ?? (text || NaN));
    return { number, text };
  }
  function order(column, sign) {
    return (one, two) => {
      const [a, b] = [key(one, column), key(two, column)];
      const missing = Number.isNaN(a.number) - Number.isNaN(b.number);
      if (missing) return missing; /* what has no number stays below, either way */
      if (Number.isNaN(a.number)) return sign * a.text.localeCompare(b.text, "en", { numeric: true });
      return sign * (a.number - b.number);
    };
  }
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const original = [...body.rows];
    if (original.length < 2) continue;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const was = head.getAttribute("aria-sort");
        const now = { ascending: "descending", descending: "" }[was] ?? "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        if (now) head.setAttribute("aria-sort", now);
        const sign = now === "descending" ? -1 : 1;
        body.append(...(now ? [...original].sort(order(column, sign)) : original));
      });
    });
  }
  /* The first column stays by itself (page.css); further labels stay beside it where there is room. */
  function pin() {
    for (const box of document.querySelectorAll(".scroll")) {
      for (const row of box.querySelectorAll("tr")) {
        let left = 0;
        for (const cell of row.querySelectorAll("th.label, th[scope=row]")) {
          const wide = cell.offsetWidth, fits = left + wide < box.clientWidth / 2;
          cell.classList.toggle("pinned", left > 0 && fits);
          cell.style.left = left > 0 && fits ? `${left}px` : "";
          left = fits ? left + wide : Infinity;
        }
      }
    }
  }
  window.addEventListener("resize", pin);
  for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", pin);
  document.querySelector("form").hidden = false;
  const asked = new URLSearchParams(location.search);
  fields.forEach((field, i) => {
    field.value = asked.get(i ? names[i - 1] : "search") || "";
    field.addEventListener("input", filter);
  });
  filter();
  pin();
})();
