// The page: shows the session, turns keys and taps into answers.

import { Outbox } from "/outbox.js";
import { Pictures } from "/pictures.js";
import { PER_PAGE, Session } from "/session.js";

const AHEAD = 10;
const PAGE_TURN_MS = 300;
const NAME_KEY = "metaphase-label/name";
const MODE_KEY = "metaphase-label/mode";
const STATES = {
  saved: () => "Saved",
  saving: () => "Saving…",
  failing: (waiting) => `${waiting} not saved yet – trying again`,
  locked: (waiting) => `${waiting} not saved yet – open the link with its token again`,
  refused: () => "An answer was refused: its item changed. Reload the page",
};

const $ = (id) => document.getElementById(id);
let session = null;
let outbox = null;
let pictures = null;
let turning = null; // a full page about to turn

// ---- entrance ----

async function enter(name) {
  const response = await fetch("/api/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ observer: name }),
  });
  if (!response.ok) throw new Error((await response.json()).detail);
  return response.json();
}

async function begin(name) {
  const state = await enter(name);
  localStorage.setItem(NAME_KEY, state.observer);
  document.title = state.title;
  $("question").textContent = state.question;
  $("who").textContent = state.observer;
  document.documentElement.style.setProperty("--inner", `${100 * state.marks}%`);
  pictures = new Pictures(state.crops);
  outbox = new Outbox(state.project, state.observer, showState);
  session = new Session(state);
  for (const { item, answer } of outbox.waiting) session.set(item, answer);
  session.resume();
  makeButtons(state.answers);
  document.body.dataset.mode = localStorage.getItem(MODE_KEY) ?? "one";
  $("entrance").hidden = true;
  $("work").hidden = false;
  show();
}

function askName(trouble = "") {
  localStorage.removeItem(NAME_KEY);
  $("work").hidden = true;
  $("entrance").hidden = false;
  $("trouble").textContent = trouble;
  $("name").focus();
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
  if (document.body.dataset.mode === "grid") showGrid();
  else showOne();
  showAnswer(session.ended ? undefined : session.given.get(session.item));
  $("done").hidden = !session.ended;
  document.body.classList.toggle("ended", session.ended);
  showNumbers();
  planAhead();
}

function showOne() {
  place($("close"), session.item, "close");
  place($("context"), session.item, "context");
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
  if (figure.dataset.item === `${item}/${view}` && figure.firstChild) return;
  figure.dataset.item = `${item}/${view}`;
  delete figure.dataset.ready;
  const image = await pictures.get(item, view);
  if (figure.dataset.item !== `${item}/${view}`) return;
  figure.classList.toggle("missing", image === null);
  const words = view === "close" ? "This picture is unavailable. Go on with →" : "";
  figure.replaceChildren(image ?? note(words));
  figure.dataset.ready = "yes";
  if (view !== "close") return;
  if (image === null) session.unavailable.add(item);
  if (item !== session.item) return;
  session.watch.lap();
  if (image === null && document.body.dataset.mode === "grid") goOnInGrid();
}

function note(text) {
  const line = document.createElement("p");
  line.textContent = text;
  return line;
}

function makeCell() {
  const cell = document.createElement("div");
  const figure = document.createElement("figure");
  const label = document.createElement("span");
  figure.className = "marked";
  cell.append(figure, label);
  return cell;
}

function showAnswer(name) {
  for (const button of $("answers").children) {
    button.setAttribute("aria-pressed", String(button.dataset.answer === name));
  }
}

function showNumbers() {
  const { done, seconds } = session;
  const total = session.items.length;
  $("count").textContent = `${done} of ${total}`;
  $("progress").firstChild.style.width = `${(100 * done) / total}%`;
  const each = done ? ` · ${(seconds / done).toFixed(1)} s each` : "";
  $("pace").textContent = `${duration(seconds)}${each}`;
  $("undo").disabled = !session.history.length;
  $("one").setAttribute("aria-pressed", String(document.body.dataset.mode === "one"));
  $("grid").setAttribute("aria-pressed", String(document.body.dataset.mode === "grid"));
  const missing = session.unavailable.size;
  $("rest").textContent = missing ? `${missing} pictures were unavailable and stay open.` : "";
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) return `${Math.round(seconds)} s`;
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function showState(state, waiting) {
  const chip = $("state");
  chip.dataset.state = state;
  chip.dataset.waiting = waiting;
  chip.textContent = STATES[state](waiting);
}

function planAhead() {
  const grid = document.body.dataset.mode === "grid";
  const next = session.ahead(grid ? 2 * PER_PAGE : AHEAD);
  pictures.plan(next.flatMap((item) => [[item, "close"], [item, "context"]]));
}

// ---- answering ----

function answerNamed(name) {
  return session.answers.find((answer) => answer.name === name);
}

function isReady() {
  const grid = document.body.dataset.mode === "grid";
  const cell = $("cells").children[session.page.indexOf(session.item)];
  const figure = grid ? cell?.firstChild : $("close");
  return figure?.dataset.ready === "yes" && !session.unavailable.has(session.item);
}

function give(name) {
  if (!isReady() || session.ended || turning !== null) return;
  const item = session.item;
  outbox.add(item, name, session.answer(item, name));
  if (document.body.dataset.mode === "grid") goOnInGrid();
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
  document.body.dataset.mode = mode;
  localStorage.setItem(MODE_KEY, mode);
  show();
}

// ---- keys and buttons ----

function makeButtons(answers) {
  const buttons = answers.map((answer) => {
    const button = document.createElement("button");
    const label = document.createElement("b");
    const key = document.createElement("kbd");
    button.type = "button";
    button.dataset.answer = answer.name;
    button.style.setProperty("--colour", answer.colour);
    label.textContent = answer.label || answer.name;
    key.textContent = answer.key.toUpperCase();
    button.append(label, key);
    button.onclick = () => give(answer.name);
    return button;
  });
  $("answers").replaceChildren(...buttons);
}

function onKey(event) {
  if (!session || $("work").hidden || event.altKey) return;
  const key = event.key.toLowerCase();
  if (event.ctrlKey || event.metaKey) {
    if (key === "z") act(event, undo);
    return;
  }
  const columns = getComputedStyle($("cells")).gridTemplateColumns.split(" ").length;
  const grid = document.body.dataset.mode === "grid";
  const actions = {
    arrowleft: () => move(-1),
    arrowright: () => move(1),
    arrowup: () => move(grid ? -columns : -1),
    arrowdown: () => move(grid ? columns : 1),
    pageup: () => move(-PER_PAGE),
    pagedown: () => move(PER_PAGE),
    g: () => setMode(grid ? "one" : "grid"),
    h: () => document.body.classList.toggle("unmarked"),
    z: undo,
    backspace: undo,
  };
  const answer = session.answers.find((one) => one.key === key) ?? digit(key);
  if (answer && !event.repeat) act(event, () => give(answer.name));
  else if (!answer && actions[key]) act(event, actions[key]);
}

// 1 to 9 give the answers in order, unless the project uses digits as keys of its own.
function digit(key) {
  if (!/^[1-9]$/.test(key) || session.answers.some((answer) => /\d/.test(answer.key))) return undefined;
  return session.answers[Number(key) - 1];
}

function act(event, action) {
  event.preventDefault();
  action();
}

$("entrance").addEventListener("submit", (event) => {
  event.preventDefault();
  begin($("name").value).catch((error) => askName(error.message));
});
$("who").onclick = () => askName();
$("undo").onclick = undo;
$("back").onclick = () => move(-1);
$("next").onclick = () => move(1);
$("one").onclick = () => setMode("one");
$("grid").onclick = () => setMode("grid");
document.addEventListener("keydown", onKey);
document.addEventListener("click", () => $("work").contains(document.activeElement) && document.activeElement.blur());
document.addEventListener("visibilitychange", refresh);
window.addEventListener("beforeunload", (event) => {
  if (outbox?.waiting.length) event.preventDefault();
});

const known = localStorage.getItem(NAME_KEY);
if (known) begin(known).catch((error) => askName(error.message));
else askName();
