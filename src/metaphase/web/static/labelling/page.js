// The page: shows items of a project, or points of a reference standard, and turns keys and taps into answers.

import { $, ask, connect, enter, makeButtons, note, onKey, showAnswer, showDone, stateShower } from "/controls.js";
import { Outbox } from "/outbox.js";
import { Pictures } from "/pictures.js";
import { PER_PAGE, Session } from "/session.js";

const AHEAD = 10;
const BAR_SHARE = 0.3;
const PAGE_TURN_MS = 300;
const MODE_KEY = "metaphase-label/mode";
const showState = stateShower("An answer was refused: its item changed. Reload the page");

let session = null;
let outbox = null;
let pictures = null;
let turning = null; // a full page about to turn
let sides = {}; // micrometres across each view
let points = new Map(); // of a reference standard: what is known of each item

// ---- entrance ----

function begin(state) {
  document.documentElement.style.setProperty("--inner", `${100 * state.marks}%`);
  sides = state.sides_um;
  points = new Map(state.points.map((point, index) => [state.items[index], point]));
  pictures = new Pictures(state.crops);
  outbox = new Outbox(state.project, state.observer, showState);
  session = new Session(state);
  for (const { item, answer } of outbox.waiting) session.set(item, answer);
  session.resume();
  makeButtons(state.answers, give);
  document.body.dataset.mode = points.size ? "points" : localStorage.getItem(MODE_KEY) ?? "one";
  show();
}

// Another device may have gone on under the same name.
async function refresh() {
  if (document.hidden || !session || outbox.waiting.length) return;
  try {
    const state = await enter(outbox.observer);
    if (outbox.waiting.length) return;
    session.take(state);
    show();
  } catch {
    // No server at the moment; the next answer will tell.
  }
}

// ---- showing ----

function show() {
  clearTimeout(turning);
  turning = null;
  if (isMode("grid")) showGrid();
  else for (const view of views()) place($(view), session.item, view);
  if (isMode("points")) showFacts(points.get(session.item));
  showAnswer(session.ended ? undefined : session.given.get(session.item));
  showDone(session);
  showNumbers();
  planAhead();
}

function isMode(mode) {
  return document.body.dataset.mode === mode;
}

function views() {
  return isMode("points") ? ["he", "phh3"] : ["close", "context"];
}

function showFacts(point) {
  const verdict = document.createElement("b");
  verdict.className = point.accepted ? "yes" : "no";
  verdict.textContent = point.accepted ? "automatically: a mitosis" : `automatically left out: ${point.reason}`;
  const numbers = [
    `case ${point.case}`,
    `PHH3 ${point.candidate} (${point.probability.toFixed(2)})`,
    `place ${point.method}, confidence ${point.confidence.toFixed(2)}`,
    `contrast ${point.contrast.toFixed(2)}`,
  ];
  $("facts").replaceChildren(verdict, ` · ${numbers.join(" · ")}`);
  $("facts").hidden = session.ended;
  $("registration").href = `/registration/${session.item}.png`;
}

function showGrid() {
  const page = session.page;
  const cells = $("cells");
  while (cells.children.length > page.length) cells.lastChild.remove();
  while (cells.children.length < page.length) cells.append(makeCell());
  page.forEach((item, index) => {
    const cell = cells.children[index];
    place(cell.firstChild, item, "close");
    const answer = answerNamed(session.given.get(item));
    cell.style.setProperty("--colour", answer?.colour ?? "transparent");
    cell.lastChild.textContent = answer ? answer.label || answer.name : "";
    cell.classList.toggle("selected", item === session.item);
    cell.onclick = () => select(item);
  });
  place($("context"), session.item, "context");
}

async function place(figure, item, view) {
  if (figure.dataset.item === String(item) && figure.firstChild) return;
  figure.dataset.item = item;
  delete figure.dataset.ready;
  const image = await pictures.get(item, view);
  if (figure.dataset.item !== String(item)) return;
  figure.classList.toggle("missing", image === null);
  const words = view !== "context" ? "This item cannot be shown, and is left out" : "";
  figure.replaceChildren(image ?? note(words), ...(image ? [scaleBar(sides[view])] : []));
  figure.dataset.ready = "yes";
  if (view === "context") return;
  const fresh = image === null && !session.unavailable.has(item);
  if (fresh) session.unavailable.add(item);
  if (item !== session.item) return;
  session.watch.lap();
  if (fresh && isMode("grid")) goOnInGrid();
  else if (fresh) goOn();
}

// The longest round length of up to a third of the picture.
function scaleBar(side) {
  const bar = document.createElement("span");
  const decade = 10 ** Math.floor(Math.log10(BAR_SHARE * side));
  const length = [5, 2, 1].map((step) => step * decade).find((step) => step <= BAR_SHARE * side);
  bar.className = "scale";
  bar.style.width = `${(100 * length) / side}%`;
  bar.textContent = `${length} µm`;
  return bar;
}

function makeCell() {
  const cell = document.createElement("div");
  const figure = document.createElement("figure");
  const label = document.createElement("span");
  figure.className = "marked";
  cell.append(figure, label);
  return cell;
}

function showNumbers() {
  const { done, seconds } = session;
  const each = done ? ` · ${(seconds / done).toFixed(1)} s each` : "";
  $("pace").textContent = `${duration(seconds)}${each}`;
  for (const mode of ["one", "grid"]) $(mode).setAttribute("aria-pressed", String(isMode(mode)));
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) return `${Math.round(seconds)} s`;
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function planAhead() {
  const next = session.ahead(isMode("grid") ? 2 * PER_PAGE : AHEAD);
  pictures.plan(next.flatMap((item) => views().map((view) => [item, view])));
}

// ---- answering ----

function answerNamed(name) {
  return session.answers.find((answer) => answer.name === name);
}

function isReady() {
  const cell = $("cells").children[session.page.indexOf(session.item)];
  const deciding = isMode("grid") ? [cell?.firstChild] : views().filter((view) => view !== "context").map($);
  return deciding.every((one) => one?.dataset.ready === "yes") && !session.unavailable.has(session.item);
}

function give(name) {
  if (!isReady() || session.ended || turning !== null) return;
  const item = session.item;
  outbox.add(item, name, session.answer(item, name));
  if (isMode("grid")) goOnInGrid();
  else goOn();
}

function goOn() {
  session.resume(session.position + 1);
  show();
}

// Within the page first; a full page stays for a moment, so that the last answer is seen.
function goOnInGrid() {
  const open = session.page.find((item) => session.isOpen(item));
  if (open !== undefined) return select(open);
  show();
  turning = setTimeout(goOn, PAGE_TURN_MS);
  return undefined;
}

function undo() {
  const undone = session.undo();
  if (!undone) return;
  outbox.add(...undone);
  show();
}

function move(step) {
  session.watch.lap();
  if (step > 0 && session.unavailable.has(session.item)) return goOn();
  session.move(step);
  return show();
}

function select(item) {
  session.goTo(item);
  show();
}

function setMode(mode) {
  if (isMode("points")) return;
  document.body.dataset.mode = mode;
  localStorage.setItem(MODE_KEY, mode);
  show();
}

// ---- keys and buttons ----

function onKeyDown(event) {
  if (!session) return;
  const columns = getComputedStyle($("cells")).gridTemplateColumns.split(" ").length;
  const grid = isMode("grid");
  const actions = {
    arrowup: () => move(grid ? -columns : -1),
    arrowdown: () => move(grid ? columns : 1),
    pageup: () => move(-PER_PAGE),
    pagedown: () => move(PER_PAGE),
    g: () => setMode(grid ? "one" : "grid"),
  };
  const answerOf = (key) => session.answers.find((one) => one.key === key) ?? digit(key);
  onKey(event, { answerOf, give, undo, move, actions });
}

// 1 to 9 give the answers in order, unless the project uses digits as keys of its own.
function digit(key) {
  if (!/^[1-9]$/.test(key) || session.answers.some((answer) => /\d/.test(answer.key))) return undefined;
  return session.answers[Number(key) - 1];
}

$("one").onclick = () => setMode("one");
$("grid").onclick = () => setMode("grid");
document.addEventListener("visibilitychange", refresh);
ask("/api/task").then(({ title, question }) => {
  document.title = title;
  for (const one of document.querySelectorAll(".title")) one.textContent = title;
  document.querySelector(".question").textContent = question;
}).catch(() => {});
connect({ begin, undo, move, onKeyDown, waiting: () => outbox?.waiting.length });
