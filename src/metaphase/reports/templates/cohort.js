"use strict";
(() => {
  const table = document.querySelector("table");
  if (!table) return;
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];

  function value(row, column) {
    const key = row.cells[column].dataset.key;
    return key === "" ? null : isNaN(key) ? key : Number(key);
  }

  function compare(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  }

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") === "descending" || (!head.hasAttribute("aria-sort") && head.classList.contains("text"));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    const known = rows.filter(([key]) => key !== null).sort(([a], [b]) => (up ? compare(a, b) : compare(b, a)));
    const unknown = rows.filter(([key]) => key === null);
    body.append(...[...known, ...unknown].map(([, row]) => row));
  }));
})();
