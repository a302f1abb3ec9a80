// The review page: shows a point in both stains, turns keys and taps into decisions.

import { $, connect, makeButtons, note, onKey, showAnswer, showDone, stateShower } from "/controls.js";
import { Outbox } from "/outbox.js";
import { Pictures } from "/pictures.js";
import { Session } from "/session.js";

const AHEAD = 10;
const SIDES = ["he", "phh3"];
const showState = stateShower("A decision was refused: its point changed. Reload the page");

let session = null;
let outbox = null;
let pictures = null;
let points = new Map();

function begin(state) {
  points = new Map(state.items.map((item, index) => [item, state.points[index]]));
  pictures = new Pictures(state.crops);
  outbox = new Outbox(state.project, state.observer, showState);
  session = new Session(state);
  for (const { item, answer } of outbox.waiting) session.set(item, answer);
  session.resume();
  makeButtons(state.answers, give);
  show();
}

// ---- showing ----

function show() {
  for (const side of SIDES) place($(side), session.item, side);
  showFacts(points.get(session.item));
  showAnswer(session.ended ? undefined : session.given.get(session.item));
  showDone(session);
  $("facts").hidden = session.ended;
  $("registration").href = `/registration/${session.item}.png`;
  pictures.plan(session.ahead(AHEAD).flatMap((item) => SIDES.map((side) => [item, side])));
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
}

async function place(figure, item, side) {
  if (figure.dataset.item === String(item) && figure.firstChild) return;
  figure.dataset.item = item;
  delete figure.dataset.ready;
  const image = await pictures.get(item, side);
  if (figure.dataset.item !== String(item)) return;
  figure.classList.toggle("missing", image === null);
  figure.replaceChildren(image ?? note("This point cannot be shown, and is left out"));
  figure.dataset.ready = "yes";
  const fresh = image === null && !session.unavailable.has(item);
  if (fresh) session.unavailable.add(item);
  if (item !== session.item) return;
  session.watch.lap();
  if (fresh) goOn();
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

function onKeyDown(event) {
  const answerOf = (key) => session.answers.find((one) => one.key === key);
  if (session) onKey(event, { answerOf, give, undo, move });
}

connect({ begin, undo, move, onKeyDown, waiting: () => outbox?.waiting.length });
