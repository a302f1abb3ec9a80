// What the pages share: asking the server, the entrance, buttons, keys, and word of what is saved.

export const NAME_KEY = "metaphase-label/name";
const STATES = {
  saved: () => "Saved",
  saving: () => "Saving…",
  failing: (waiting) => `${waiting} kept in this browser until the server is back`,
  locked: (waiting) => `${waiting} not saved yet – open the link with its token again`,
};

export const $ = (id) => document.getElementById(id);

// ---- asking the server ----

export async function ask(address, body) {
  const response = await fetch(address, body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (response.status === 403) throw new Error("Open the link with its token, as printed by the server.");
  if (!response.ok) throw new Error((await response.json()).detail);
  return response.json();
}

// Nobody leaves without a word while answers are not saved yet; `waiting` tells how many.
export function holdBack(waiting) {
  window.addEventListener("beforeunload", (event) => {
    if (waiting()) event.preventDefault();
  });
}

// ---- entrance ----

// The observer's state, from the server.
export const enter = (name) => ask("/api/session", { observer: name });

// Let in whoever gives a name or gave one before; `begin` is called with the observer's state.
function openEntrance(begin) {
  const tryName = (name) => welcome(name, begin).catch((error) => askName(error.message));
  $("entrance").addEventListener("submit", (event) => {
    event.preventDefault();
    tryName($("name").value);
  });
  $("who").onclick = () => askName();
  const known = localStorage.getItem(NAME_KEY);
  if (known) tryName(known);
  else askName();
}

async function welcome(name, begin) {
  const state = await enter(name);
  localStorage.setItem(NAME_KEY, state.observer);
  document.title = state.title;
  $("question").textContent = state.question;
  $("who").textContent = state.observer;
  $("entrance").hidden = true;
  $("work").hidden = false;
  begin(state);
}

function askName(trouble = "") {
  localStorage.removeItem(NAME_KEY);
  $("work").hidden = true;
  $("entrance").hidden = false;
  $("trouble").textContent = trouble;
  $("name").focus();
}

// ---- showing ----

// For an outbox to call; `refused` is what to say when the server knows an item no more.
export function stateShower(refused) {
  return (state, waiting) => {
    const chip = $("state");
    chip.dataset.state = state;
    chip.dataset.waiting = waiting;
    chip.textContent = state === "refused" ? refused : STATES[state](waiting);
  };
}

export function showAnswer(name) {
  for (const button of $("answers").children) {
    button.setAttribute("aria-pressed", String(button.dataset.answer === name));
  }
}

export function showDone(session) {
  $("done").hidden = !session.ended;
  document.body.classList.toggle("ended", session.ended);
  $("count").textContent = `${session.done} of ${session.total}`;
  $("progress").firstChild.style.width = `${(100 * session.done) / Math.max(1, session.total)}%`;
  const left = session.items.length - session.total;
  $("rest").textContent = left ? `${left} more cannot be shown and ${left === 1 ? "is" : "are"} left out.` : "";
  $("undo").disabled = !session.history.length;
}

export function note(text) {
  const line = document.createElement("p");
  line.textContent = text;
  return line;
}

// ---- keys and buttons ----

export function makeButtons(answers, give) {
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

// Keys give answers first, then do `actions`; `answerOf` finds the answer of a key.
export function onKey(event, { answerOf, give, undo, move, actions = {} }) {
  if ($("work").hidden || event.altKey) return;
  const key = event.key.toLowerCase();
  if (event.ctrlKey || event.metaKey) {
    if (key === "z") act(event, undo);
    return;
  }
  const known = {
    arrowleft: () => move(-1),
    arrowright: () => move(1),
    h: () => document.body.classList.toggle("unmarked"),
    z: undo,
    backspace: undo,
    ...actions,
  };
  const answer = answerOf(key);
  if (answer && !event.repeat) act(event, () => give(answer.name));
  else if (!answer && known[key]) act(event, known[key]);
}

function act(event, action) {
  event.preventDefault();
  action();
}

// Connect a page: `waiting` tells how many answers are not saved yet.
export function connect({ begin, undo, move, onKeyDown, waiting }) {
  $("undo").onclick = undo;
  $("back").onclick = () => move(-1);
  $("next").onclick = () => move(1);
  document.addEventListener("keydown", onKeyDown);
  document.addEventListener(
    "click",
    () => $("work").contains(document.activeElement) && document.activeElement.blur(),
  );
  holdBack(waiting);
  openEntrance(begin);
}
