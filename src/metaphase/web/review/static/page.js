// The review page: shows a point in both stains, turns keys and taps into decisions.

import { Outbox } from "/outbox.js";
import { Pictures } from "/pictures.js";
import { Session } from "/session.js";

const AHEAD = 10;
const SIDES = ["he", "phh3"];
const NAME_KEY = "metaphase-label/name";
const STATES = {
  saved: () => "Saved",
  saving: () => "Saving…",
  failing: (waiting) => `${waiting} not saved yet – trying again`,
  locked: (waiting) => `${waiting} not saved yet – open the link with its token again`,
  refused: () => "A decision was refused: its point changed. Reload the page",
};

const $ = (id) => document.getElementById(id);
let session = null;
let outbox = null;
let pictures = null;
let points = new Map();

// ---- entrance ----

async function enter(name) {
  const response = await fetch("/api/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ observer: name }),
  });
  if (response.status === 403) throw new Error("Open the link with its token, as printed by the server.");
  if (!response.ok) throw new Error((await response.json()).detail);
  return response.json();
}

async function begin(name) {
  const state = await enter(name);
  localStorage.setItem(NAME_KEY, state.observer);
  document.title = state.title;
  $("question").textContent = state.question;
  $("who").textContent = state.observer;
  points = new Map(state.items.map((item, index) => [item, state.points[index]]));
  pictures = new Pictures(state.crops);
  outbox = new Outbox(state.project, state.observer, showState);
  session = new Session(state);
  for (const { item, answer } of outbox.waiting) session.set(item, answer);
  session.resume();
  makeButtons(state.answers);
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

// ---- showing ----

function show() {
  for (const side of SIDES) place($(side), session.item, side);
  showFacts(points.get(session.item));
  const given = session.ended ? undefined : session.given.get(session.item);
  for (const button of $("answers").children) {
    button.setAttribute("aria-pressed", String(button.dataset.answer === given));
  }
  $("done").hidden = !session.ended;
  document.body.classList.toggle("ended", session.ended);
  $("facts").hidden = session.ended;
  $("count").textContent = `${session.done} of ${session.items.length}`;
  $("progress").firstChild.style.width = `${(100 * session.done) / session.items.length}%`;
  $("undo").disabled = !session.history.length;
  $("registration").href = `/registration/${session.item}.png`;
  pictures.plan(session.ahead(AHEAD).flatMap((item) => SIDES.map((side) => [item, side])));
}

function showFacts(point) {
  const verdict = document.createElement("b");
  verdict.className = point.accepted ? "yes" : "no";
  verdict.textContent = point.accepted ? "accepted automatically" : `refused: ${point.reason}`;
  const numbers = [
    `case ${point.case}`,
    `PHH3 ${point.candidate} (${point.probability.toFixed(2)})`,
    `place ${point.method}, confidence ${point.confidence.toFixed(2)}`,
    `contrast ${point.contrast.toFixed(2)}`,
  ];
  $("facts").replaceChildren(verdict, ` · ${numbers.join(" · ")}`);
}

async function place(figure, item, side) {
  if (figure.dataset.item === String(item) && figure.firstChild) return;
  figure.dataset.item = item;
  delete figure.dataset.ready;
  const image = await pictures.get(item, side);
  if (figure.dataset.item !== String(item)) return;
  figure.classList.toggle("missing", image === null);
  figure.replaceChildren(image ?? note("This picture is unavailable. Go on with →"));
  figure.dataset.ready = "yes";
  if (image === null) session.unavailable.add(item);
  if (item === session.item) session.watch.lap();
}

function note(text) {
  const line = document.createElement("p");
  line.textContent = text;
  return line;
}

function showState(state, waiting) {
  const chip = $("state");
  chip.dataset.state = state;
  chip.textContent = STATES[state](waiting);
}

// ---- deciding ----

function isReady() {
  return SIDES.every((side) => $(side).dataset.ready === "yes") && !session.unavailable.has(session.item);
}

function give(name) {
  if (!isReady() || session.ended) return;
  const item = session.item;
  outbox.add(item, name, session.answer(item, name));
  goOn();
}

function goOn() {
  session.resume(session.position + 1);
  show();
}

function undo() {
  const undone = session.undo();
  if (!undone) return;
  outbox.add(...undone);
  show();
}

function move(step) {
  session.watch.lap();
  session.move(step);
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
  const actions = {
    arrowleft: () => move(-1),
    arrowright: () => move(1),
    h: () => document.body.classList.toggle("unmarked"),
    z: undo,
    backspace: undo,
  };
  const answer = session.answers.find((one) => one.key === key);
  if (answer && !event.repeat) act(event, () => give(answer.name));
  else if (!answer && actions[key]) act(event, actions[key]);
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
document.addEventListener("keydown", onKey);
document.addEventListener("click", () => $("work").contains(document.activeElement) && document.activeElement.blur());
window.addEventListener("beforeunload", (event) => {
  if (outbox?.waiting.length) event.preventDefault();
});

const known = localStorage.getItem(NAME_KEY);
if (known) begin(known).catch((error) => askName(error.message));
else askName();
