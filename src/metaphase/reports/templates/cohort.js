"use strict";
(() => {
  const body = document.querySelector("tbody");
  if (!body || typeof SLIDES === "undefined") return;
  const heads = [...document.querySelectorAll("th")];
  const tools = document.querySelector(".tools");
  const [search, filter, shown] = ["input", "select", "output"].map((name) => tools.querySelector(name));
  const [earlier, further] = tools.querySelectorAll("button");
  const everywhere = JSON.parse(body.dataset.everywhere);
  const size = Number(body.dataset.page);
  const all = SLIDES.rows.map((row) => Object.fromEntries(SLIDES.columns.map((name, place) => [name, row[place]])));
  let by = "count", up = false, page = 0, chosen = all;

  function compare(a, b) {
    const [first, second] = [a, b].map((slide) => (by === "warnings" ? slide.warnings.length : slide[by]));
    if (first === null || second === null) return (first === null) - (second === null);
    const order = typeof first === "number" ? first - second : first.localeCompare(second, undefined, { numeric: true });
    return up ? order : -order;
  }

  function cell(row, kind, content) {
    const one = row.insertCell();
    one.className = kind;
    one.append(content);
  }

  function element(name, content, address) {
    const one = document.createElement(name);
    one.textContent = content;
    if (address) one.href = address.split("/").map(encodeURIComponent).join("/");
    return one;
  }

  const figure = (value) => (value === null ? "–" : String(Number(value.toPrecision(3))));
  const area = (value) => (value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }));

  function draw() {
    body.replaceChildren();
    for (const slide of chosen.slice(page * size, (page + 1) * size)) {
      const row = body.insertRow();
      const codes = slide.warnings.filter((code) => !everywhere.includes(code));
      cell(row, "text name", element("a", slide.case, slide.report));
      if (slide.scope) row.lastChild.append(element("small", slide.scope));
      cell(row, "", element("b", slide.text));
      cell(row, "", figure(slide.per_mm2));
      cell(row, "nowrap", slide.interval_text || "–");
      cell(row, "text wide", slide.kind);
      cell(row, "nowrap", slide.score);
      cell(row, "wide", area(slide.counted_mm2));
      cell(row, "text wide", slide.model);
      cell(row, "wide", area(slide.area_mm2));
      cell(row, "text cares", codes.join(", ").replaceAll("-", " "));
    }
    const last = Math.min(chosen.length, (page + 1) * size);
    const first = chosen.length ? page * size + 1 : 0;
    shown.textContent = [first, "to", last, "of", chosen.length].map((part) => part.toLocaleString("en")).join(" ");
    earlier.disabled = page === 0;
    further.disabled = last === chosen.length;
  }

  function choose() {
    const [part, code] = [search.value.toLowerCase(), filter.value];
    const fits = (codes) => !code || (code === "-" ? !codes.length : codes.includes(code));
    chosen = all.filter((slide) => slide.case.toLowerCase().includes(part) && fits(slide.warnings)).sort(compare);
    page = 0;
    draw();
  }

  heads.forEach((head) => head.querySelector("button").addEventListener("click", () => {
    const was = head.getAttribute("aria-sort");
    by = head.dataset.by;
    up = was === "descending" || (!was && head.classList.contains("text"));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    choose();
  }));
  [search, filter].forEach((one) => one.addEventListener("input", choose));
  tools.addEventListener("submit", (event) => event.preventDefault());
  earlier.addEventListener("click", () => { page -= 1; draw(); });
  further.addEventListener("click", () => { page += 1; draw(); });
  tools.hidden = false;
  choose();
})();
