// The viewer: the list of slides, the slide with its layers, the threshold, and the review of what was found.

import { $, NAME_KEY, ask, holdBack, stateShower } from "/controls.js";
import { Grid } from "/grid.js";
import { Layers } from "/layers.js";
import { Marks, colourOf } from "/marks.js";
import { LENSES, Ruler, distance, isLens, lengthText, lensText, magnification } from "/microscope.js";
import { Outbox } from "/outbox.js";
import { Regions } from "/regions.js";
import { Review } from "/review.js";
import { GIVEN_UP, TileQueue, tileSource, tilesOf, touches } from "/tiles.js";

const CLOSE = 40; // a figure with its neighbours
const AHEAD = 3;
const NEAR_PX = 16;
const PAUSE_MS = 120;
const CHANGES_MS = 4000;
const ZOOM_STEP = 1.6;
const NARROW = matchMedia("(max-width: 60rem)"); // where the list would hide what it leads to
const SURE = 0.8;
const HABITS_KEY = "metaphase-view/habits";

const silent = () => {};
OpenSeadragon.console = { log: silent, debug: silent, info: silent, warn: silent, error: silent, assert: silent };

const queue = new TileQueue();
const marks = new Marks($("marks"));
const settings = {
  drawer: "canvas",
  prefixUrl: "/",
  showNavigationControl: false,
  showNavigator: true,
  navigatorId: "map",
  animationTime: 0.35,
  springStiffness: 9,
  blendTime: 0,
  maxZoomPixelRatio: 4,
  minZoomImageRatio: 0.1,
  maxImageCacheCount: 500,
  visibilityRatio: 0.3,
  gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
  gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: true, pinchRotate: false },
  gestureSettingsPen: { clickToZoom: false, dblClickToZoom: true },
};
const viewer = OpenSeadragon({ ...settings, element: $("zoom") });
const layers = new Layers(viewer, queue, settings);

const regions = new Regions({
  viewer,
  frame: () => frame(),
  inView: () => inView(),
  isOpen: () => Boolean(slide && image()),
  fit: (box) => fit(box),
  redraw: () => {
    if (regions.busy) showGrid(false);
    showLimit();
    redraw();
  },
  said: () => (asking += 1), // a count on its way does not know of this
  saved: () => countSoon(),
  askName: () => $("observer").focus(),
  apply: () => applyReview(),
});

let cohort = { slides: [], blind: false };
let slide = null;
let view = null; // the count as the server tells it, with what is drawn beside it
let count = null;
let threshold = 1;
let review = null;
let outbox = null;
let observer = "";
let pointer = null; // where the mouse is, in level-0 pixels; null where there is none
let sorted = { by: "name", up: true };
// How this person reviews: all of the slide or the circle, down to which probability, by pictures or one by one.
let habits = { everywhere: false, floor: null, shown: false, grid: false, ...JSON.parse(localStorage.getItem(HABITS_KEY) ?? "{}") };
const ruler = new Ruler();
const grid = new Grid({ give: answer, look: lookAt, facts: (item) => (habits.shown || review.ownAnswer(item) ? slide.probability[item.row].toFixed(2) : "") });

// To whoever listens to the page.
const say = (words) => ($("said").textContent = words);

// A name that breaks where its parts end, not within them.
function broken(text) {
  const parts = text.split(/(?<=[_\-./ ])/);
  return parts.flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));
}

// ---- the list ----

async function loadList() {
  cohort = await ask("/api/slides", { observer });
  showList();
}

// A line as it is now.
function putRow(row) {
  cohort.slides = cohort.slides.map((one) => (one.key === row.key ? row : one));
  showList();
}

const followRow = async (key) => putRow((await ask(`/api/count/${key}`, { observer })).row);

function sortedRows() {
  const { by, up } = sorted;
  const order = (one, two) => {
    const [a, b] = [one, two].map((row) => (by === "count" ? row.count?.count ?? null : row[by]));
    if (a === null || b === null) return (a === null) - (b === null);
    const less = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    return up ? less : -less;
  };
  return [...cohort.slides].sort(order);
}

function showList() {
  const { by, up } = sorted;
  const rows = sortedRows().map((one) => {
    const row = document.createElement("tr");
    const cells = [one.name, one.count?.text ?? "–", one.count?.interval_text || "–", one.counted ? `${one.answered} of ${one.candidates}` : "–"];
    row.title = [one.problem, one.waits ? "Answers wait to be applied" : ""].filter(Boolean).join(" ");
    row.className = [one.problem ? "missing" : "", one.waits ? "waits" : ""].join(" ").trim();
    row.append(...cells.map((content) => Object.assign(document.createElement("td"), { textContent: content })));
    row.firstChild.replaceChildren(...broken(one.name));
    row.tabIndex = 0;
    row.setAttribute("aria-current", String(one.key === slide?.key));
    row.onclick = () => openSlide(one.key);
    row.onkeydown = (event) => event.key === "Enter" && openSlide(one.key);
    return row;
  });
  document.querySelector("#list tbody").replaceChildren(...rows);
  for (const head of document.querySelectorAll("#list th")) {
    const mine = head.firstElementChild.dataset.sort === by;
    if (mine) head.setAttribute("aria-sort", up ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
}

function sortBy(by) {
  sorted = { by, up: sorted.by === by ? !sorted.up : by === "name" };
  showList();
}

function toggleList(shown = $("list").hidden) {
  $("list").hidden = !shown;
  $("show-list").setAttribute("aria-expanded", String(shown));
}

function toList() {
  toggleList(true);
  $("panel").scrollTop = 0;
  loadList().catch(silent);
}

// The next in the list with something left to answer, else the next.
function nextSlide() {
  const rows = sortedRows();
  const at = rows.findIndex((one) => one.key === slide.key);
  const others = [...rows.slice(at + 1), ...rows.slice(0, at)].filter((one) => one.counted);
  const next = others.find((one) => one.progress < 1) ?? others[0];
  if (next) openSlide(next.key);
}

// ---- a slide ----

async function openSlide(key, place = null) {
  if (slide?.key === key) return place && goTo(place);
  if (review && $("numbers").dataset.waiting) followRow(slide.key).catch(silent);
  slide = await ask(`/api/slide/${encodeURIComponent(key)}`);
  count = view = null;
  review = null;
  regions.open(slide);
  $("work").hidden = true;
  if (NARROW.matches) toggleList(false);
  threshold = slide.threshold;
  marks.heat = null;
  $("name").replaceChildren(...broken(slide.name));
  document.title = slide.name;
  for (const id of ["review", "numbers", "cut", "layers"]) $(id).hidden = !slide.counted;
  $("report").href = `/report/${key}`;
  $("report").hidden = !slide.counted || cohort.blind;
  queue.keep(() => false);
  $("problem").textContent = slide.problem;
  if (slide.problem) viewer.close();
  else {
    viewer.addOnceHandler("open", () => {
      showWhere();
      if (place) goTo(place);
    });
    viewer.open(tileSource(slide, queue));
  }
  layers.open(slide);
  showList();
  if (!slide.counted) return undefined;
  showCut();
  await refreshCount();
  if (observer) await beginReview(!place);
  return undefined;
}

const image = () => viewer.world.getItemAt(0);

function frame() {
  const origin = viewer.viewport.pixelFromPoint(viewer.viewport.imageToViewportCoordinates(0, 0), true);
  const far = viewer.viewport.pixelFromPoint(viewer.viewport.imageToViewportCoordinates(slide.width, 0), true);
  return { left: origin.x, top: origin.y, scale: (far.x - origin.x) / slide.width };
}

// The part of the slide in view, in level-0 pixels.
function inView() {
  const box = viewer.viewport.viewportToImageRectangle(viewer.viewport.getBounds(true));
  return { x: box.x, y: box.y, width: box.width, height: box.height };
}

function fit(box) {
  viewer.viewport.fitBounds(viewer.viewport.imageToViewportRectangle(box.x, box.y, box.width, box.height), true);
  keepLink();
}

function goTo({ x, y, width }) {
  const side = width ?? (viewer.container.clientWidth * magnification(CLOSE)) / slide.mpp;
  const aspect = viewer.container.clientHeight / viewer.container.clientWidth;
  fit({ x: x - side / 2, y: y - (side * aspect) / 2, width: side, height: side * aspect });
  redraw();
}

function toHotspot() {
  if (!count?.hotspot.count || !image()) return;
  const { x, y, radius_px: radius } = count.hotspot;
  fit({ x: x - 1.1 * radius, y: y - 1.1 * radius, width: 2.2 * radius, height: 2.2 * radius });
  redraw();
}

function redraw() {
  if (!slide || !image()) return;
  const veiled = review && !habits.shown ? new Set(review.items.map((item) => item.row)) : null;
  const drawn = { review: answers(), current: review?.current, within: regions, veiled, ruler: ruled() };
  marks.draw(frame(), slide, { threshold, count, view, ...drawn });
  showScale();
}

function showScale() {
  const perUm = frame().scale / slide.mpp;
  const longest = 150 / perUm;
  const decade = 10 ** Math.floor(Math.log10(longest));
  const length = [5, 2, 1].map((step) => step * decade).find((step) => step <= longest * 1.0001);
  document.querySelector("#scale i").style.width = `${length * perUm}px`;
  document.querySelector("#scale span").textContent = length >= 1000 ? `${length / 1000} mm` : `${Number(length.toPrecision(3))} µm`;
}

function showWhere() {
  if (!slide || !image()) return;
  const { x, y } = pointer ?? middle();
  const mm = (value) => ((value * slide.mpp) / 1000).toFixed(3);
  const perPixel = slide.mpp / frame().scale;
  const power = magnification(perPixel);
  const parts = [`${mm(x)}, ${mm(y)} mm`, ` · ${Math.round(x)}, ${Math.round(y)} px`, ` · ${lensText(power)}`, ` · ${Number(perPixel.toPrecision(2))} µm/px`];
  parts.forEach((text, index) => ($("where").children[index].textContent = text));
  for (const button of document.querySelectorAll("[data-lens]")) button.setAttribute("aria-pressed", String(isLens(power, Number(button.dataset.lens))));
}

// As through a lens of this power: 40x is 0.25 um for a pixel of the screen.
function magnify(lens) {
  if (!image()) return;
  showGrid(false);
  viewer.viewport.zoomTo(image().imageToViewportZoom((slide.mpp * lens) / magnification(1)), null, true);
  keepLink();
  redraw();
  showWhere();
  say(`${lens} times`);
}

// The ruler as it is drawn; its second end follows the mouse, or the middle.
function ruled() {
  const ends = ruler.ends(here());
  return ends && { ends, text: lengthText(distance(ends, slide.mpp)) };
}

function measure() {
  if (!image()) return;
  ruler.press(here());
  redraw();
  if (!ruler.from) return void say("Ruler away");
  hint(ruler.to ? `${ruled().text}. R takes the ruler away.` : "Ruler: go to the other end, and press R.");
}

function middle() {
  const box = inView();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}

// ---- links to places ----

const linked = { busy: false };

function keepLink() {
  if (!slide || !image()) return;
  const { x, y } = middle();
  const place = `#s=${slide.key}&x=${Math.round(x)}&y=${Math.round(y)}&w=${Math.round(inView().width)}`;
  linked.busy = true;
  history.replaceState(null, "", place);
  linked.busy = false;
}

function linkedPlace() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [x, y, width] = ["x", "y", "w"].map((name) => Number(given.get(name)));
  const fine = [x, y, width].every(Number.isFinite) && width > 0;
  return { key: given.get("s"), place: fine ? { x, y, width } : null };
}

async function followLink() {
  const { key, place } = linkedPlace();
  if (cohort.slides.some((one) => one.key === key)) await openSlide(key, place);
}

async function copyLink() {
  keepLink();
  try {
    await navigator.clipboard.writeText(location.href);
    hint("Link copied");
  } catch {
    hint("The link is in the address bar");
  }
}

// ---- the count ----

let asking = 0;
let later = null;

function countSoon() {
  clearTimeout(later);
  later = setTimeout(() => refreshCount().catch(silent), PAUSE_MS);
}

async function refreshCount() {
  const mine = (asking += 1);
  const own = threshold === slide.threshold;
  $("numbers").dataset.waiting = "yes";
  const found = await ask(`/api/count/${slide.key}`, { observer, threshold: own ? null : threshold });
  if (mine !== asking) return;
  if (found.record !== slide.record) return void (await showChanged());
  view = { ...found, given: new Review(slide, found, [], silent) };
  count = found.count;
  regions.follow(count);
  followScope();
  if (found.row) putRow(found.row);
  showCount(own);
  redraw();
  loadDensity(found.density);
  delete $("numbers").dataset.waiting;
}

// Where figures are asked about: this stays while answers move the circle, and follows what a person draws.
function followScope() {
  const scope = JSON.stringify(count.scope);
  if (slide.scope === scope) return;
  const { x, y, radius_px: radius, fields } = count.hotspot;
  const circles = fields.length ? fields : [[x, y, radius]];
  Object.assign(slide, { scope, circles: count.area_mm2 < count.config.area_mm2 ? null : circles });
  if (!review) return;
  limit();
  showReview();
}

function showCount(own) {
  $("count").textContent = count.text;
  $("interval").textContent = count.interval_text ? `true figures: ${count.interval_text}` : "no interval of the true figures";
  $("to-look-at").textContent = count.to_look_at ? `${count.to_look_at} more to be looked at in the circle` : "";
  $("kind").textContent = `${count.kind_text}${own ? "" : ", at another threshold"}`;
  $("note").textContent = count.interval_note;
  const [score, ...others] = count.scores;
  $("score").textContent = score.text;
  $("rule").textContent = [score.rule, ...others.map((one) => `${one.rule}: ${one.text}`)].join("; ");
  const lines = (texts) => texts.map((line) => Object.assign(document.createElement("li"), { textContent: line }));
  $("beneath").replaceChildren(...lines(view.lines.slice(1)));
  $("shares").replaceChildren(...lines(view.shares));
  showInside(count.hotspot.count, count.counted);
  showOutcome();
  $("numbers").dataset.count = count.count;
}

function showInside(circle, all) {
  $("counted").textContent = `${circle} in the circle, ${all} on the slide`;
}

function loadDensity(density) {
  if (!density) {
    marks.heat = null;
    return;
  }
  const heat = new Image();
  heat.onload = () => {
    marks.heat = heat;
    redraw();
  };
  heat.src = density.address;
}

// ---- the threshold ----

function showCut() {
  const slider = $("threshold");
  slider.min = String(Math.max(0, Math.floor(slide.lowest * 1000) / 1000));
  slider.max = "1";
  slider.value = String(threshold);
  $("low").textContent = slide.lowest.toFixed(2);
  const pen = $("ramp").getContext("2d");
  for (let x = 0; x < 256; x += 1) {
    pen.fillStyle = colourOf(slide.lowest + ((1 - slide.lowest) * x) / 255, slide.lowest);
    pen.fillRect(x, 0, 1, 1);
  }
  showLimit();
}

// The answers that are marked and counted: of a review, or without an observer all that stand.
const answers = () => review ?? view?.given;

// The circle's content at once, before the server has found the circle anew.
function showLimit() {
  $("limit").textContent = threshold.toFixed(3);
  const circle = count?.hotspot;
  const circles = circle && (circle.fields.length ? circle.fields : [[circle.x, circle.y, circle.radius_px]]);
  const inside = (x, y) => !circles || circles.some(([left, top, radius]) => Math.hypot(x - left, y - top) <= radius);
  const counts = (row) => {
    const answer = answers()?.answerAt(slide.x[row], slide.y[row]);
    return answer === "mitosis" || (answer !== "not" && slide.probability[row] >= threshold);
  };
  let [all, here] = [0, 0];
  for (let row = 0; row < slide.x.length; row += 1) {
    if (!counts(row) || !regions.countsRow(row)) continue;
    all += 1;
    here += inside(slide.x[row], slide.y[row]);
  }
  for (const one of answers()?.added() ?? []) {
    if (one.answer !== "mitosis" || !regions.counts(one.x, one.y)) continue;
    all += 1;
    here += inside(one.x, one.y);
  }
  showInside(here, all);
  $("reset").disabled = threshold === slide.threshold;
}

function setThreshold(value) {
  threshold = value;
  showLimit();
  redraw();
  countSoon();
}

// ---- the review ----

const showState = stateShower("An answer was refused: reload the page");

function stateChanged(key, state, waiting) {
  if (key === slide.key) showState(state, waiting);
  if (state !== "saved") return;
  if (key === slide.key) countSoon();
  else followRow(key).catch(silent);
}

async function enter(name) {
  try {
    observer = name;
    await beginReview();
    localStorage.setItem(NAME_KEY, observer);
    await loadList();
  } catch (error) {
    leave(error.message);
  }
}

function leave(trouble = "") {
  observer = "";
  review = null;
  outbox = null;
  regions.enter("");
  localStorage.removeItem(NAME_KEY);
  $("trouble").textContent = trouble;
  $("work").hidden = true;
  $("entrance").hidden = false;
}

async function beginReview(jump = true) {
  const state = await ask(`/api/review/${slide.key}`, { observer });
  observer = state.observer;
  const { key } = slide;
  toggleList(false);
  outbox = new Outbox(key, observer, (...state) => stateChanged(key, ...state)); // answers wait for a server that has their slide
  review = new Review(slide, state, outbox.waiting, (item, answer, seconds) => {
    asking += 1; // a count on its way does not know of this
    outbox.add(item, answer, seconds);
  });
  hint();
  regions.enter(observer);
  limit();
  $("who").textContent = observer;
  $("entrance").hidden = true;
  $("work").hidden = false;
  if (jump) whenOpen(() => showFigure());
  showGrid(habits.grid);
  showReview();
}

const floor = () => Math.max(slide.lowest, habits.floor ?? slide.listed);
const inCircle = ({ x, y }) => !slide.circles || slide.circles.some(([left, top, radius]) => Math.hypot(x - left, y - top) <= radius * (1 + 1e-9));

// What is asked, as this person chose.
function limit() {
  review.limit((item) => regions.countsRow(item.row) && (habits.everywhere || inCircle(item)) && slide.probability[item.row] >= floor() - 1e-9);
  Object.assign($("floor"), { min: String(Math.floor(slide.lowest * 100) / 100), value: String(floor()) });
  $("floor-text").textContent = floor().toFixed(2);
  $("everywhere").checked = habits.everywhere;
  $("shown").checked = habits.shown;
  $("asked").textContent = `${review.items.length} figures ${habits.everywhere || !slide.circles ? "on the slide" : "in the circle"}`;
}

function setHabits(changed) {
  habits = { ...habits, ...changed };
  localStorage.setItem(HABITS_KEY, JSON.stringify(habits));
  if (!review) return;
  if (!("grid" in changed)) limit();
  showReview();
}

// Pictures side by side, or the slide itself.
function showGrid(shown) {
  if (!review && shown) return;
  if (shown !== habits.grid) setHabits({ grid: shown });
  $("grid").hidden = !shown || !review;
  $("pictures").setAttribute("aria-pressed", String(!$("grid").hidden));
  if (!$("grid").hidden) grid.show(review);
}

function turnGrid() {
  if (!review) return;
  showGrid($("grid").hidden);
  if ($("grid").hidden) showFigure();
  else grid.follow(review);
  say($("grid").hidden ? "One by one" : "Pictures side by side");
}

// A picture becomes the current one, or is looked at on the slide.
function lookAt(item, closely = false) {
  review.select(item.row);
  if (closely) turnGrid();
  showReview();
}

// Selects what is open and sure; an answer is then about all of it.
function selectSure() {
  if (!review) return;
  showGrid(true);
  const sure = review.open.filter((item) => slide.probability[item.row] >= SURE);
  const all = sure.every((item) => grid.selected.has(item));
  for (const item of sure) if (grid.selected.has(item) === all) grid.toggle(item);
  showReview();
  const what = `${sure.length} figure${sure.length === 1 ? "" : "s"} that the model is sure of`;
  hint(sure.length ? (all ? "Nothing is selected." : `${what}: press M, N or U for all of them.`) : "No open figure is sure.");
}

const SAID = { mitosis: "Mitosis", not: "Not", unsure: "Unsure" };
const hint = (words = "") => ($("hint").textContent = words);

function showReview() {
  const { current, done, ended, items } = review;
  if (!$("grid").hidden) grid.show(review);
  $("figure").textContent = ended ? (items.length ? "End of the review" : "Nothing was found") : `${review.position + 1} of ${items.length}`;
  $("facts").textContent = current ? factsOf(current) : "";
  $("done").textContent = `${done} of ${items.length} answered`;
  document.querySelector("#progress i").style.width = `${(100 * done) / Math.max(1, items.length)}%`;
  for (const button of document.querySelectorAll("[data-answer]")) {
    button.setAttribute("aria-pressed", String(Boolean(current) && review.ownAnswer(current) === button.dataset.answer));
  }
  $("undo").disabled = !review.history.length;
  $("answers").hidden = ended;
  $("end").hidden = !ended;
  if (ended) showEnd();
  showNotes();
  showLimit();
  redraw();
}

function factsOf({ x, y, row }) {
  const probability = slide.probability[row];
  const said = review.ownAnswer({ x, y });
  const below = probability >= threshold ? "" : ", below the threshold";
  const known = said || habits.shown ? [`probability ${probability.toFixed(3)}${below}`] : [];
  if (said) known.push(`you said ${SAID[said]}${review.isAtypical({ x, y }) ? ", atypical" : ""}, another answer changes it`);
  return known.join("; ");
}

// ---- notes ----

function showNotes() {
  $("notes").replaceChildren(...review.notes.map((note, index) => {
    const line = document.createElement("li");
    const go = Object.assign(document.createElement("button"), { type: "button", textContent: `${index + 1}. ${note.text}` });
    go.onclick = () => {
      showGrid(false);
      goTo(note);
    };
    line.append(go);
    if (!note.own) line.append(` ${note.observer}`);
    else {
      const gone = Object.assign(document.createElement("button"), { type: "button", textContent: "Delete" });
      gone.setAttribute("aria-label", `Delete note ${index + 1}`);
      gone.onclick = () => keepNote(note, "");
      line.append(gone);
    }
    return line;
  }));
}

function keepNote({ x, y }, text) {
  review.write(x, y, text);
  hint(text ? "Note kept; Z undoes it." : "Note deleted; Z undoes it.");
  showReview();
}

// Asks for a note at the mouse, or in the middle.
function askNote() {
  if (!review || !image()) return;
  const place = $("grid").hidden || !review.current ? here() : review.current;
  Object.assign($("note-form"), { hidden: false, place });
  $("note-text").value = "";
  $("note-text").focus();
}

function endNote(kept) {
  const { place } = $("note-form");
  const text = $("note-text").value.trim();
  $("note-form").hidden = true;
  $("note-text").blur();
  if (kept && text) keepNote(place, text);
}

function showEnd() {
  const { mitosis, not, unsure, added, atypical } = review.tally;
  const left = review.items.length - review.done;
  $("figure").dataset.ready = "end";
  $("tally").textContent = `${mitosis} accepted, ${not} rejected, ${added} added, ${unsure} unsure${atypical ? `, ${atypical} atypical` : ""}${left ? `; ${left} not answered` : ""}.`;
  $("time").textContent = `${review.own.size} answer${review.own.size === 1 ? "" : "s"} in ${timeText(review.seconds)}.`;
  $("figures").hidden = !review.items.length;
  $("next-slide").hidden = $("to-list").hidden = cohort.slides.length < 2;
  $("apply").hidden = cohort.blind;
  $("withdraw").disabled = !review.own.size;
  $("withdraw").textContent = "Withdraw my review";
  delete $("withdraw").dataset.sure;
  showOutcome();
}

function timeText(seconds) {
  const minutes = Math.floor(seconds / 60);
  return minutes ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.round(seconds)} s`;
}

// The count as it is now.
function showOutcome() {
  if (!count) return;
  const interval = count.interval_text ? `, true figures likely ${count.interval_text}` : "";
  const others = view.lines.slice(1).map((line) => `Without the review: ${line}.`).join(" ");
  $("outcome").textContent = `Mitotic count now ${count.text}${interval}. ${others}`;
}

// Reports, tables and exports of all slides from the answers that stand, everybody's.
async function applyReview() {
  hint("Writing reports, tables and exports…");
  try {
    const { applied, failed } = await ask("/api/apply", {});
    const others = Object.keys(applied).filter((name) => name !== slide.name).length;
    const also = others ? ` So do those of ${others} other slide${others === 1 ? "" : "s"} with answers.` : "";
    const own = applied[slide.name] ? `Applied: report, tables and exports say ${applied[slide.name]}.` : "";
    await loadList();
    await showChanged();
    hint([own + also, ...failed].join(" "));
  } catch (error) {
    hint(error.message);
  }
}

// The files are others than those that are shown: somebody applied a review, or counted again.
async function showChanged() {
  const now = await ask(`/api/slide/${slide.key}`);
  if (now.key !== slide.key) return;
  const [ended, at] = [review?.ended, review?.position];
  slide = now;
  threshold = slide.threshold;
  showCut();
  if (observer) {
    await beginReview(false);
    review.turn(ended ? review.items.length : at);
    showReview();
  }
  hint("The files of this slide have changed; they are shown as they are now.");
  await refreshCount();
}

async function lookForChanges() {
  if (!slide?.counted || document.hidden || outbox?.waiting.length || $("numbers").dataset.waiting) return;
  const { key, record } = slide;
  const now = await ask(`/api/record/${key}`);
  if (slide?.key !== key || now === record || slide.record !== record) return;
  await loadList();
  await showChanged();
}

// Asks once more before it takes all own answers back.
async function withdrawReview() {
  const button = $("withdraw");
  if (!button.dataset.sure) {
    button.dataset.sure = "asked";
    button.textContent = `Withdraw ${review.own.size} answers? Press again`;
    return;
  }
  if (outbox.waiting.length) {
    hint("Some answers are not saved yet: try again when they are.");
    return;
  }
  try {
    await ask(`/api/withdraw/${slide.key}`, { observer });
    await showChanged();
    hint("Withdrawn: your answers no longer count. They stay in the log.");
  } catch (error) {
    hint(error.message);
  }
}

// Shows the current figure, and tells the browser's own clock when all of it is there.
function showFigure(started = performance.now()) {
  const current = review.current;
  if (!current || !image() || !$("grid").hidden) return;
  const [x, y] = review.placeOf(current.x, current.y) ?? [current.x, current.y];
  const across = inView().width * slide.mpp;
  const close = across > 25 && across < 500;
  image().immediateRender = true; // a jump needs no coarser tiles on the way
  goTo({ x, y, width: close ? inView().width : undefined });
  $("figure").dataset.ready = "";
  whenWhole(() => {
    if (review?.current !== current) return;
    image().immediateRender = false;
    $("figure").dataset.ready = String(review.position);
    performance.measure("figure", { start: started, end: performance.now() });
    fetchAhead();
  });
}

function whenOpen(action) {
  if (image()) action();
  else viewer.addOnceHandler("open", action);
}

function whenWhole(done, frames = 0) {
  requestAnimationFrame(() => {
    if (frames > 1 && image()?.getFullyLoaded()) done();
    else if (frames < 1200) whenWhole(done, frames + 1);
  });
}

// The tiles of the figures that come next, into the browser's store.
function fetchAhead() {
  const { width, height } = inView();
  const scale = frame().scale * (window.devicePixelRatio || 1);
  const level = Math.max(0, Math.min(slide.levels, Math.ceil(Math.log2(0.5 / scale))));
  const boxes = review.ahead(AHEAD).map((item) => ({ x: item.x - width / 2, y: item.y - height / 2, width, height }));
  for (const address of boxes.flatMap((box) => tilesOf(slide, box, level))) fetch(address, { priority: "low" }).catch(silent);
}

function answer(name, items = $("grid").hidden ? undefined : grid.chosen(review)) {
  if (!review) return;
  if (review.ended && !items) {
    hint("This is the end: go back with ←, or select a ring, to change an answer.");
    return;
  }
  const started = performance.now();
  const before = review.give(name, items);
  grid.selected.clear();
  const several = items?.length > 1 ? `${items.length} figures: ` : "";
  say(`${several}${SAID[name]}. ${review.done} of ${review.items.length} answered.`);
  hint(before && before !== name ? `Changed from ${SAID[before]} to ${SAID[name]}; Z undoes it.` : "");
  showFigure(started);
  showReview();
  if (!$("grid").hidden) grid.follow(review);
}

// The current figure, or those selected, are atypical mitotic figures; again, and they are not.
function markAtypical() {
  const items = review && (($("grid").hidden ? undefined : grid.chosen(review)) ?? (review.current ? [review.current] : []));
  if (!items?.length) return;
  const [started, open] = [performance.now(), !review.ownAnswer(items[0])];
  const marked = review.markAtypical(items);
  grid.selected.clear();
  hint(marked ? "Marked as an atypical mitotic figure; Z undoes it." : "No longer marked as atypical.");
  if (open) {
    review.seek(review.position + 1);
    showFigure(started);
  }
  showReview();
}

function finish() {
  if (!review) return;
  review.finish();
  showReview();
}

const here = () => (pointer && !document.body.classList.contains("touching") ? pointer : middle());

function addHere() {
  if (!review) return;
  review.add(here().x, here().y);
  showReview();
}

function moveHere() {
  if (!review?.current) return;
  review.move(here().x, here().y);
  showReview();
}

function undo() {
  const last = review?.undo();
  if (!last) return;
  if ($("grid").hidden) goTo(last);
  showReview();
  say(`Undone. ${review.done} of ${review.items.length} answered.`);
}

function step(by) {
  if (!review) return;
  const started = performance.now();
  review.go(by);
  hint();
  showFigure(started);
  showReview();
  if (!$("grid").hidden) grid.follow(review);
  else say($("figure").textContent);
}

// A tap on a ring makes it the figure under review.
function choose(place) {
  if (!review) return;
  const reach = NEAR_PX / frame().scale;
  let [best, least] = [-1, reach];
  for (let row = 0; row < slide.x.length; row += 1) {
    const distance = Math.hypot(slide.x[row] - place.x, slide.y[row] - place.y);
    if (distance < least) [best, least] = [row, distance];
  }
  if (best < 0) return;
  review.select(best);
  hint();
  showReview();
}

// ---- keys, pointers and buttons ----

function zoomBy(factor) {
  viewer.viewport.zoomBy(factor);
  viewer.viewport.applyConstraints();
}

function pan(x, y) {
  const box = viewer.viewport.getBounds();
  viewer.viewport.panBy(new OpenSeadragon.Point(0.2 * box.width * x, 0.2 * box.height * y));
  viewer.viewport.applyConstraints();
}

function toggleLayer(number) {
  const box = document.querySelectorAll("[data-layer]")[number];
  if (box) box.click();
}

const KEYS = {
  m: () => answer("mitosis"), n: () => answer("not"), u: () => answer("unsure"),
  i: addHere, v: moveHere, z: undo, backspace: undo,
  arrowleft: () => (review ? step(-1) : pan(-1, 0)), arrowright: () => (review ? step(1) : pan(1, 0)),
  arrowup: () => ($("grid").hidden ? pan(0, -1) : step(-grid.columns)), arrowdown: () => ($("grid").hidden ? pan(0, 1) : step(grid.columns)),
  "+": () => zoomBy(ZOOM_STEP), "=": () => zoomBy(ZOOM_STEP), "-": () => zoomBy(1 / ZOOM_STEP),
  0: () => viewer.viewport.goHome(), o: toHotspot, l: () => ($("list").hidden ? toList() : toggleList(false)), c: copyLink,
  e: finish, s: nextSlide, g: turnGrid, a: selectSure, y: markAtypical, w: askNote, r: measure, p: () => setHabits({ shown: !habits.shown }),
  h: () => {
    marks.hidden = !marks.hidden;
    redraw();
  },
};

function onKey(event) {
  if (slide && regions.onKey(event)) return;
  const typing = event.target.matches?.("input[type=text]");
  if (!slide || typing || event.altKey || event.ctrlKey || event.metaKey) return;
  const key = event.key.toLowerCase();
  const repeatable = /^(arrow|[+=-])/.test(key);
  const action = numbered(event) ?? KEYS[key];
  if (!action || (event.repeat && !repeatable)) return;
  if (event.target.matches?.("input[type=range]") && key.startsWith("arrow")) return;
  event.preventDefault();
  action();
}

// 1 to 5 magnify, 7 and 8 lay pictures over the slide, 1 to 6 with Shift switch layers.
function numbered({ code, key, shiftKey }) {
  const number = Number((shiftKey ? code.match(/^Digit([1-6])$/) : key.match(/^([1-578])$/))?.[1]);
  if (!number) return undefined;
  if (shiftKey) return () => toggleLayer(number - 1);
  return number > 5 ? () => layers.turn(number - 7) : () => magnify(LENSES[number - 1]);
}

function connect() {
  document.addEventListener("keydown", onKey);
  viewer.addHandler("canvas-key", (event) => {
    event.preventDefaultAction = true;
  });
  viewer.addHandler("tile-load-failed", ({ tile, message }) => {
    if (message === GIVEN_UP) queueMicrotask(() => Object.assign(tile, { exists: true, loading: false }));
  });
  viewer.addHandler("update-viewport", redraw);
  viewer.addHandler("resize", redraw);
  viewer.addHandler("animation", () => {
    const box = inView();
    queue.keep((address) => touches(slide, address, box) || address.includes(`/${slide.levels}/`));
    showWhere();
  });
  viewer.addHandler("animation-finish", keepLink);
  viewer.addHandler("canvas-click", (event) => {
    if (event.quick && !regions.busy) choose(viewer.viewport.viewerElementToImageCoordinates(event.position));
  });
  $("stage").addEventListener("pointermove", (event) => {
    document.body.classList.toggle("touching", event.pointerType === "touch");
    if (!slide || !image() || event.pointerType === "touch") return;
    const box = $("stage").getBoundingClientRect();
    const place = new OpenSeadragon.Point(event.clientX - box.left, event.clientY - box.top);
    pointer = viewer.viewport.viewerElementToImageCoordinates(place);
    showWhere();
    if (ruler.from && !ruler.to) redraw();
  }, true);
  $("stage").addEventListener("pointerleave", () => {
    pointer = null;
    showWhere();
  });
  for (const box of document.querySelectorAll("[data-layer]")) {
    marks.layers[box.dataset.layer] = box.checked;
    box.onchange = () => {
      marks.layers[box.dataset.layer] = box.checked;
      redraw();
    };
  }
  for (const button of document.querySelectorAll("[data-answer]")) button.onclick = () => answer(button.dataset.answer);
  for (const button of document.querySelectorAll("[data-sort]")) button.onclick = () => sortBy(button.dataset.sort);
  const clicks = {
    in: KEYS["+"], out: KEYS["-"], whole: KEYS[0], "to-hotspot": toHotspot, link: copyLink, add: addHere, move: moveHere, undo,
    back: () => step(-1), next: () => step(1), figures: () => step(-1), finish, "next-slide": nextSlide, "to-list": toList,
    pictures: turnGrid, sure: selectSure, atypical: markAtypical, write: askNote, ruler: measure, "note-cancel": () => endNote(false),
    apply: applyReview, withdraw: withdrawReview, "show-list": KEYS.l, who: () => leave(),
    reset: () => {
      $("threshold").value = String(slide.threshold);
      setThreshold(slide.threshold);
    },
  };
  for (const [id, action] of Object.entries(clicks)) $(id).onclick = () => action();
  for (const button of document.querySelectorAll("[data-lens]")) button.onclick = () => magnify(Number(button.dataset.lens));
  for (const id of ["everywhere", "shown"]) $(id).onchange = () => setHabits({ [id]: $(id).checked });
  $("floor").oninput = () => setHabits({ floor: Number($("floor").value) });
  $("note-form").addEventListener("submit", (event) => {
    event.preventDefault();
    endNote(true);
  });
  $("note-text").onkeydown = (event) => void (event.key === "Escape" && endNote(false));
  $("threshold").oninput = () => setThreshold(Number($("threshold").value));
  $("entrance").addEventListener("submit", (event) => {
    event.preventDefault();
    enter($("observer").value);
  });
  window.addEventListener("hashchange", () => linked.busy || followLink());
  holdBack(() => outbox?.waiting.length);
  setInterval(() => lookForChanges().catch(silent), CHANGES_MS);
  new ResizeObserver(redraw).observe($("stage"));
}

async function begin() {
  connect();
  observer = localStorage.getItem(NAME_KEY) ?? "";
  $("observer").value = observer;
  await loadList();
  toggleList(cohort.slides.length > 1);
  const { key, place } = linkedPlace();
  const first = cohort.slides.find((one) => one.key === key) ?? cohort.slides[0];
  if (first) await openSlide(first.key, first.key === key ? place : null);
}

begin().catch((error) => {
  $("name").textContent = error.message;
});
