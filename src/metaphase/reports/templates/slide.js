"use strict";
(() => {
  const panel = document.getElementById("picked");
  const buttons = [...document.querySelectorAll(".crop button")];
  if (!panel || !buttons.length) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  const pictures = document.getElementById("pictures");
  let current = -1;

  function point(id, place) {
    const mark = document.getElementById(id);
    if (!mark) return;
    mark.classList.toggle("on", Boolean(place));
    if (!place) return;
    const [x, y] = place.split(" ");
    mark.setAttribute("cx", x);
    mark.setAttribute("cy", y);
  }

  function show(index) {
    if (current >= 0) buttons[current].setAttribute("aria-pressed", "false");
    current = index;
    const button = index < 0 ? null : buttons[index];
    point("pointer-overview", button && button.dataset.overview);
    point("pointer-closeup", button && button.dataset.closeup);
    panel.hidden = !button;
    if (!button) return;
    button.setAttribute("aria-pressed", "true");
    const [close, context] = button.querySelectorAll("img");
    for (const [id, picture] of [["close", close], ["half", context], ["wide", context]]) {
      document.getElementById("picked-" + id).src = picture.src;
      document.getElementById("picked-" + id).alt = close.alt;
    }
    panel.querySelector("#picked-text").textContent = button.dataset.text;
  }

  function step(by) {
    show((current + by + buttons.length) % buttons.length);
  }

  function back() {
    const button = buttons[current];
    show(-1);
    if (!button) return;
    button.focus({ preventScroll: true });
    button.scrollIntoView({ block: "center", behavior: calm });
  }

  const chosen = () => buttons.findIndex((button) => "#" + button.parentElement.id === location.hash);

  buttons.forEach((button, index) => button.addEventListener("click", () => {
    show(index);
    panel.querySelector("[data-act=next]").focus({ preventScroll: true });
  }));
  document.querySelectorAll(".rings a").forEach((link) => link.addEventListener("click", (event) => {
    const index = buttons.findIndex((button) => "#" + button.parentElement.id === link.getAttribute("href"));
    if (index < 0) return;
    event.preventDefault();
    show(index);
  }));
  panel.addEventListener("click", (event) => {
    const act = event.target.dataset.act;
    if (act === "back") back();
    else if (act === "where") pictures.scrollIntoView({ block: "start", behavior: calm });
    else if (act) step(act === "next" ? 1 : -1);
  });
  document.addEventListener("keydown", (event) => {
    if (panel.hidden || event.target.matches("input")) return;
    if (event.key === "Escape") back();
    else if (event.key === "ArrowRight") step(1);
    else if (event.key === "ArrowLeft") step(-1);
  });
  if (chosen() >= 0) show(chosen());
})();
