// Regions and the place of the count: drawing, changing and undoing them, by mouse and by keyboard. What a person
// says is in the outbox at once; the server's word on it comes with the next count.

import { $ } from "/controls.js";
import { emptied } from "/marks.js";
import { Outbox } from "/outbox.js";

const NAMES = { tumour: "include", "invasive tumour": "include", DCIS: "exclude", necrosis: "exclude", "out of focus": "exclude", artefact: "exclude" };
const KINDS = { include: "counts", exclude: "does not count" };
const COLOURS = { include: "#007a5e", exclude: "#a84300" };
const BLUE = "#0a3fae";
const NEAR_PX = 12;
const STEP_PX = 24; // of the cross, by an arrow key; with Shift a sixth
const APART_PX = 3; // between corners that a hand draws
const MOST_CORNERS = 1500;
const MOST_SENT = 60000; // characters, as the server takes them
const HELP = {
  polygon: "Click the corners, and the first one again. By keyboard: arrow keys and Enter for each corner, Backspace takes one back, F finishes, Escape leaves off.",
  freehand: "Draw around it with the mouse held down. By keyboard: Enter puts the pen down, arrow keys draw, Enter lifts it. Escape leaves off.",
  place: "Click where to count. By keyboard: arrow keys and Enter. Escape leaves off.",
  edit: "Drag a corner. By keyboard: N and P go from corner to corner, arrow keys move it, Delete removes it, Enter finishes, Escape takes it back.",
};

const round = (value) => Math.round(value * 10) / 10;
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function element(tag, about = {}, ...inside) {
  const made = Object.assign(document.createElement(tag), tag === "button" ? { type: "button" } : {}, about);
  made.append(...inside);
  return made;
}

// ---- shapes ----

const ringsOf = (region) => region.polygons.flat();

// Even-odd, as the server has it.
function holds(region, x, y) {
  let inside = false;
  for (const ring of ringsOf(region)) {
    for (let here = 0, before = ring.length - 1; here < ring.length; before = here, here += 1) {
      const [[x0, y0], [x1, y1]] = [ring[before], ring[here]];
      if (y0 > y !== y1 > y && x < x0 + ((y - y0) * (x1 - x0)) / (y1 - y0)) inside = !inside;
    }
  }
  return inside;
}

function areaOf(ring) {
  let twice = 0;
  ring.forEach(([x, y], at) => {
    const [nextX, nextY] = ring[(at + 1) % ring.length];
    twice += x * nextY - nextX * y;
  });
  return Math.abs(twice) / 2;
}

const areaPx2 = (region) => region.polygons.reduce((sum, [outer, ...holes]) => sum + areaOf(outer) - holes.reduce((all, hole) => all + areaOf(hole), 0), 0);

function boxOf(region) {
  const [xs, ys] = [0, 1].map((axis) => ringsOf(region).flat().map((corner) => corner[axis]));
  const [low, high] = [Math.min, Math.max].map((end) => [xs, ys].map((values) => values.reduce((a, b) => end(a, b))));
  return { x: low[0], y: low[1], width: high[0] - low[0], height: high[1] - low[1] };
}

// Fewer corners, none farther off than a tolerance (Douglas and Peucker).
function simpler(points, tolerance) {
  const kept = new Uint8Array(points.length);
  const parts = [[0, points.length - 1]];
  kept[0] = kept[points.length - 1] = 1;
  while (parts.length) {
    const [first, last] = parts.pop();
    const [[x0, y0], [x1, y1]] = [points[first], points[last]];
    const length = Math.hypot(x1 - x0, y1 - y0);
    let [far, at] = [tolerance, -1];
    for (let middle = first + 1; middle < last; middle += 1) {
      const [x, y] = points[middle];
      const off = length ? Math.abs((x1 - x0) * (y0 - y) - (x0 - x) * (y1 - y0)) / length : Math.hypot(x - x0, y - y0);
      if (off > far) [far, at] = [off, middle];
    }
    if (at < 0) continue;
    kept[at] = 1;
    parts.push([first, at], [at, last]);
  }
  return points.filter((_, at) => kept[at]);
}

// Ten fields that touch, in rows of three, four and three, as the server has them.
export function fieldsOf({ x, y, field_diameter_mm: diameter }, mpp) {
  const side = (1000 * diameter) / mpp;
  const rows = [[3, -1], [4, 0], [3, 1]];
  return rows.flatMap(([number, row]) => Array.from({ length: number }, (_, at) => [x + (at - (number - 1) / 2) * side, y + (row * side * Math.sqrt(3)) / 2, side / 2]));
}

const newId = () => {
  const hex = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
};

export class Regions {
  // `host` knows the page: viewer, slide, observer, frame, inView, fit, redraw, saved, askName and apply.
  constructor(host) {
    this.host = host;
    this.known = new Map();
    this.canvas = element("canvas", { id: "outlines" });
    $("marks").after(this.canvas);
    $("stage").tabIndex = -1;
    this.build($("regions"));
    this.listen(host.viewer);
    this.open(null);
  }

  // ---- what is known ----

  open(slide) {
    this.slide = slide;
    this.known = new Map();
    this.place = null;
    this.count = null;
    [this.past, this.future] = [[], []];
    this.outbox = null;
    this.leave("");
    $("regions").hidden = !slide?.counted;
    this.show();
  }

  // What the server says, unless it does not know yet what was said here.
  follow(count) {
    this.count = count;
    if (!this.outbox?.waiting.length && !this.mode) {
      this.known = new Map(count.scope.regions.map((region) => [region.id, region]));
      this.place = count.scope.place;
    }
    this.held = null;
    this.show();
  }

  enter(observer) {
    if (!observer || !this.slide) return void (this.outbox = null);
    const { key } = this.slide;
    this.outbox = new Outbox(`${key}-regions`, observer, (state, waiting) => this.sent(key, state, waiting), 1);
  }

  sent(key, state, waiting) {
    if (key !== this.slide?.key) return;
    this.list.dataset.state = state;
    const isNew = state === "saved" && this.sending;
    this.sending = state !== "saved" && state !== "refused";
    if (isNew) this.host.saved();
    else if (state === "refused") this.say("It was refused: it has no area, or is not on the slide.");
    else if (state !== "saving") this.say(`${waiting} not saved yet; kept in this browser.`);
  }

  // Whether figures at a position count.
  counts(x, y) {
    const all = [...this.known.values()];
    const held = (kind) => all.some((region) => region.kind === kind && holds(region, x, y));
    return (held("include") || !all.some((region) => region.kind === "include")) && !held("exclude");
  }

  // The same of a detection of the slide, at once.
  countsRow(row) {
    this.held ??= this.known.size ? Uint8Array.from(this.slide.x, (x, at) => this.counts(x, this.slide.y[at])) : new Uint8Array();
    return !this.known.size || this.held[row] === 1;
  }

  // ---- changes ----

  value(id) {
    return id === "place" ? this.place : this.known.get(id) ?? null;
  }

  change(id, after, words) {
    const before = this.value(id);
    if (same(before, after) || !this.mayChange()) return;
    if (JSON.stringify(after).length > MOST_SENT) return void this.say("It has too many corners to be changed here: change it where it was drawn.");
    this.past.push({ id, before, after, words });
    this.future = [];
    this.put(id, after, words);
  }

  put(id, value, words) {
    if (id === "place") this.place = value;
    else if (value) this.known.set(id, value);
    else this.known.delete(id);
    const { kind, name, polygons } = value ?? {};
    const said = value === null ? null : JSON.stringify(id === "place" ? value : { id, kind, name, polygons });
    this.host.said();
    this.outbox.add({ slide: this.slide.key, region: id }, said, 0);
    this.held = null;
    this.say(words);
    this.show();
    this.host.redraw();
  }

  turn(from, to, key, word) {
    const last = from.pop();
    if (!last || !this.outbox) return;
    this.leave("");
    to.push(last);
    this.put(last.id, last[key], `${word}: ${last.words}`);
  }

  undo() {
    this.turn(this.past, this.future, "before", "Undone");
  }

  redo() {
    this.turn(this.future, this.past, "after", "Done again");
  }

  // ---- drawing ----

  get busy() {
    return Boolean(this.mode);
  }

  // Whether somebody is there whose word it is.
  mayChange() {
    if (this.outbox) return true;
    this.say("Give your name first: what you outline is saved under it.");
    this.host.askName();
    return false;
  }

  begin(mode, about = {}) {
    if (!this.mayChange()) return undefined;
    if (!this.host.isOpen()) return void this.say("The picture of the slide is not there yet.");
    if (this.mode === mode && mode !== "edit") return void this.leave("Left off.");
    this.leave("");
    Object.assign(this, { mode, points: [], cursor: null, pen: false, ...about });
    this.say(HELP[mode]);
    this.show();
    $("stage").focus({ preventScroll: true });
    this.draw();
    return undefined;
  }

  leave(words) {
    Object.assign(this, { mode: null, points: [], cursor: null, pen: false, edited: null, corner: null, dragged: false, fields: null });
    if (words) this.say(words);
    this.showTools();
    this.draw();
  }

  finish() {
    const { scale } = this.host.frame();
    let points = this.points.map(([x, y]) => [round(Math.min(Math.max(x, 0), this.slide.width)), round(Math.min(Math.max(y, 0), this.slide.height))]);
    if (this.mode === "freehand") for (let off = 0.75; points.length > 3 && off < 100; off *= 2) {
      points = simpler(points, off / scale);
      if (points.length <= MOST_CORNERS) break;
    }
    if (points.length < 3 || areaOf(points) < 1) return void this.leave("That has no area: nothing was outlined.");
    const id = newId();
    const [name, kind] = [this.named(), this.kind.value];
    this.leave("");
    this.change(id, { id, kind, name, polygons: [[points]] }, `${name}, ${KINDS[kind]}, ${this.mm2(areaOf(points))}`);
    return undefined;
  }

  point([x, y]) {
    if (this.mode === "place") {
      const place = { x: round(x), y: round(y), field_diameter_mm: this.fields };
      const words = place.field_diameter_mm ? `Ten fields of ${place.field_diameter_mm} mm are counted here` : "The circle is counted here";
      this.leave("");
      return void this.change("place", place, words);
    }
    const [first] = this.points;
    if (this.points.length > 2 && this.isNear(first, [x, y])) return void this.finish();
    this.points.push([x, y]);
    this.say(`Corner ${this.points.length}.`);
    this.draw();
    return undefined;
  }

  isNear([x, y], [otherX, otherY]) {
    return Math.hypot(x - otherX, y - otherY) * this.host.frame().scale < NEAR_PX;
  }

  // ---- changing corners ----

  edit(id) {
    const region = this.known.get(id);
    this.begin("edit", { edited: structuredClone(region), corner: [0, 0, 0] });
    if (this.mode) this.showWhat(region);
  }

  ring() {
    const [polygon, ring] = this.corner;
    return this.edited.polygons[polygon][ring];
  }

  moveCorner(x, y) {
    this.ring()[this.corner[2]] = [round(Math.min(Math.max(x, 0), this.slide.width)), round(Math.min(Math.max(y, 0), this.slide.height))];
    this.draw();
  }

  stepCorner(by) {
    const all = this.edited.polygons.flatMap((polygon, one) => polygon.flatMap((ring, two) => ring.map((_, three) => [one, two, three])));
    const at = all.findIndex((corner) => same(corner, this.corner));
    this.corner = all[(at + by + all.length) % all.length];
    this.keepInView(this.ring()[this.corner[2]]);
    this.say(`Corner ${1 + ((at + by + all.length) % all.length)} of ${all.length}.`);
    this.draw();
  }

  removeCorner() {
    if (this.ring().length <= 3) return void this.say("A region needs three corners.");
    this.ring().splice(this.corner[2], 1);
    this.corner[2] %= this.ring().length;
    this.say("Corner removed.");
    this.draw();
    return undefined;
  }

  finishEdit() {
    const { edited } = this;
    this.leave("");
    this.change(edited.id, { ...edited, note: "", filed: false }, `${edited.name} changed, ${this.mm2(areaPx2(edited))}`);
    this.show();
  }

  // ---- mouse ----

  listen(viewer) {
    const at = (event) => {
      const { x, y } = viewer.viewport.viewerElementToImageCoordinates(event.position);
      return [x, y];
    };
    const only = (modes, act) => (event) => {
      if (!modes.includes(this.mode)) return;
      event.preventDefaultAction = true;
      act(event);
    };
    viewer.addHandler("canvas-click", only(["polygon", "place"], (event) => event.quick && this.point(at(event))));
    viewer.addHandler("canvas-double-click", only(["polygon", "place", "edit", "freehand"], () => {}));
    viewer.addHandler("canvas-press", only(["freehand", "edit"], (event) => {
      if (this.mode === "freehand") this.points = [at(event)];
      else this.dragged = this.grip(at(event));
    }));
    viewer.addHandler("canvas-drag", (event) => {
      if (this.mode === "edit" && this.dragged) this.moveCorner(...at(event));
      else if (this.mode === "freehand") this.trace(at(event));
      else return;
      event.preventDefaultAction = true;
    });
    viewer.addHandler("canvas-release", () => {
      if (this.mode === "freehand" && this.points.length > 2) this.finish();
      this.dragged = false;
    });
    $("stage").addEventListener("pointermove", (event) => {
      if (!this.mode || !this.host.isOpen()) return;
      const box = $("stage").getBoundingClientRect();
      this.cursor = at({ position: new OpenSeadragon.Point(event.clientX - box.left, event.clientY - box.top) });
      this.draw();
    }, true);
    viewer.addHandler("update-viewport", () => this.draw());
    viewer.addHandler("resize", () => this.draw());
  }

  // The corner under the mouse becomes the current one; between two, a new one is made.
  grip(place) {
    const [reach, found] = [NEAR_PX / this.host.frame().scale, []];
    this.edited.polygons.forEach((polygon, one) => polygon.forEach((ring, two) => ring.forEach(([x, y], three) => {
      found.push([Math.hypot(x - place[0], y - place[1]), [one, two, three], false]);
      const [nextX, nextY] = ring[(three + 1) % ring.length];
      found.push([Math.hypot((x + nextX) / 2 - place[0], (y + nextY) / 2 - place[1]), [one, two, three + 1], true]);
    })));
    const [off, corner, isNew] = found.reduce((best, one) => (one[0] < best[0] ? one : best));
    if (off > reach) return false;
    this.corner = corner;
    if (isNew) this.ring().splice(corner[2], 0, place);
    return true;
  }

  trace(place) {
    const last = this.points.at(-1);
    const apart = last ? Math.hypot(place[0] - last[0], place[1] - last[1]) * this.host.frame().scale : Infinity;
    if (apart >= APART_PX) this.points.push(place);
    this.draw();
  }

  // ---- keyboard ----

  // Whether it took a key.
  onKey(event) {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && ["z", "y"].includes(event.key.toLowerCase())) {
      if (event.target.matches?.("input[type=text]")) return false;
      event.preventDefault();
      if (event.key.toLowerCase() === "y" || event.shiftKey) this.redo();
      else this.undo();
      return true;
    }
    const control = event.target.closest?.("button, input, select, summary, a");
    if (!this.mode || event.ctrlKey || event.metaKey || event.altKey || (control && event.key !== "Escape")) return false;
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const action = arrow ? () => this.go(arrow, event.shiftKey) : this.keys()[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return false;
    event.preventDefault();
    action();
    return true;
  }

  keys() {
    const editing = this.mode === "edit";
    const common = { Escape: () => this.leave("Left off.") };
    if (editing) return { ...common, n: () => this.stepCorner(1), p: () => this.stepCorner(-1), Delete: () => this.removeCorner(), Backspace: () => this.removeCorner(), Enter: () => this.finishEdit(), f: () => this.finishEdit() };
    const drawing = { ...common, f: () => this.finish(), Backspace: () => { this.points.pop(); this.draw(); } };
    if (this.mode === "freehand") return { ...drawing, Enter: () => this.togglePen() };
    return { ...(this.mode === "place" ? common : drawing), Enter: () => this.point(this.cross()) };
  }

  togglePen() {
    if (this.pen) return void this.finish();
    this.pen = true;
    this.points = [this.cross()];
    this.say("The pen is down.");
    this.draw();
    return undefined;
  }

  // Where the cross is; at first in the middle of the picture.
  cross() {
    const box = this.host.inView();
    this.cursor ??= [box.x + box.width / 2, box.y + box.height / 2];
    return [...this.cursor];
  }

  go([x, y], fine) {
    const step = (fine ? STEP_PX / 6 : STEP_PX) / this.host.frame().scale;
    if (this.mode === "edit") {
      const [oldX, oldY] = this.ring()[this.corner[2]];
      this.moveCorner(oldX + x * step, oldY + y * step);
      return void this.keepInView(this.ring()[this.corner[2]]);
    }
    const [oldX, oldY] = this.cross();
    this.cursor = [oldX + x * step, oldY + y * step];
    if (this.pen) this.points.push([...this.cursor]);
    this.keepInView(this.cursor);
    this.draw();
    return undefined;
  }

  keepInView([x, y]) {
    const box = this.host.inView();
    const { viewport } = this.host.viewer;
    if (x > box.x && y > box.y && x < box.x + box.width && y < box.y + box.height) return;
    viewport.panTo(viewport.imageToViewportCoordinates(x, y), true);
  }

  // ---- the panel ----

  build(section) {
    const button = (text, act, about = {}) => element("button", { textContent: text, onclick: act, ...about });
    this.modes = {
      polygon: button("Polygon", () => this.begin("polygon")),
      freehand: button("Freehand", () => this.begin("freehand")),
    };
    this.back = button("Undo", () => this.undo(), { title: "Undo (Ctrl+Z)" });
    this.forth = button("Redo", () => this.redo(), { title: "Redo (Ctrl+Y)" });
    this.name = element("select", {}, ...[...Object.keys(NAMES), "other"].map((name) => new Option(name)));
    this.free = element("input", { type: "text", maxLength: 64, hidden: true, value: "follicle", ariaLabel: "Name of the region", autocomplete: "off" });
    this.kind = element("select", {}, ...Object.entries(KINDS).map(([kind, text]) => new Option(text, kind)));
    this.kind.ariaLabel = "Whether figures count in it";
    this.name.onchange = () => {
      this.free.hidden = this.name.value !== "other";
      this.kind.value = NAMES[this.name.value] ?? "exclude";
      this.rename();
    };
    this.free.onchange = this.kind.onchange = () => this.rename();
    this.diameter = element("input", { type: "number", min: "0.4", max: "0.69", step: "0.01", value: "0.5", ariaLabel: "Diameter of a field in mm" });
    this.place_ = {
      circle: button("Circle elsewhere", () => this.begin("place", { fields: null })),
      fields: button("Ten fields", () => this.tenFields()),
      densest: button("Densest circle", () => this.change("place", null, "The densest circle is counted")),
    };
    this.list = element("ul", { className: "outlined" });
    this.area = element("p", { className: "soft" });
    this.said = element("p", { className: "soft said" });
    this.said.setAttribute("role", "status");
    this.apply = button("Apply", () => this.host.apply(), { title: "Write reports, tables and exports of all slides" });
    const heading = element("h2", { textContent: "Regions" });
    section.append(
      heading,
      element("div", { className: "row" }, this.modes.polygon, this.modes.freehand, this.back, this.forth),
      element("div", { className: "row" }, element("label", {}, "Outlines ", this.name), this.free, element("label", {}, "which ", this.kind)),
      this.list,
      element("h2", { textContent: "Count elsewhere" }),
      element("div", { className: "row" }, this.place_.circle, this.place_.fields, element("label", {}, "of ", this.diameter, " mm"), this.place_.densest),
      this.area,
      this.said,
      element("div", { className: "row" }, this.apply),
    );
  }

  tenFields() {
    const diameter = Number(this.diameter.value);
    if (!(diameter >= 0.4 && diameter <= 0.69)) return void this.say("Give the diameter of a field in mm, from 0.40 to 0.69.");
    this.begin("place", { fields: diameter });
    return undefined;
  }

  named() {
    return this.name.value === "other" ? this.free.value.trim() || "region" : this.name.value;
  }

  // Name and kind of the region that is being changed.
  rename() {
    if (this.mode === "edit") Object.assign(this.edited, { name: this.named(), kind: this.kind.value });
    this.draw();
  }

  showWhat({ name, kind }) {
    const known = name in NAMES;
    this.name.value = known ? name : "other";
    this.free.hidden = known;
    if (!known) this.free.value = name;
    this.kind.value = kind;
  }

  mm2(px2) {
    const value = (px2 * this.slide.mpp ** 2) / 1e6;
    return `${value.toFixed(2)} mm²`; // as reports have it
  }

  say(words) {
    this.said.textContent = words;
  }

  showTools() {
    for (const [mode, button] of Object.entries(this.modes)) button.setAttribute("aria-pressed", String(this.mode === mode));
    this.place_.circle.setAttribute("aria-pressed", String(this.mode === "place" && !this.fields));
    this.place_.fields.setAttribute("aria-pressed", String(this.mode === "place" && Boolean(this.fields)));
    this.place_.densest.disabled = !this.place;
    this.back.disabled = !this.past?.length;
    this.forth.disabled = !this.future?.length;
    document.body.classList.toggle("outlining", Boolean(this.mode));
  }

  show() {
    this.showTools();
    if (!this.slide) return;
    const focused = document.activeElement?.dataset?.act;
    const line = (region) => {
      const act = (text, label, run) => {
        const made = element("button", { textContent: text, ariaLabel: `${label} ${region.name}`, onclick: run });
        made.dataset.act = `${text} ${region.id}`;
        return made;
      };
      const what = element("span", {}, element("i", { className: region.kind }), `${region.name}, ${KINDS[region.kind]}, ${this.mm2(areaPx2(region))}`);
      return element("li", { title: region.note ?? "" }, what,
        act("Show", "Show", () => this.see(region)), act("Edit", "Edit", () => this.edit(region.id)),
        act("Delete", "Delete", () => this.change(region.id, null, `${region.name} deleted`)));
    };
    this.list.replaceChildren(...[...this.known.values()].map(line));
    if (focused) [...this.list.querySelectorAll("button")].find((one) => one.dataset.act === focused)?.focus();
    const { count } = this;
    if (count) {
      const mm2 = (value) => (value === null ? "unknown" : `${value.toFixed(2)} mm²`);
      const where = this.known.size ? "In the regions" : "On the slide";
      this.area.textContent = `${where}: ${mm2(count.area_mm2)} of tissue. Counted: ${mm2(count.counted_mm2)}${this.place ? ", at a chosen place" : ""}.`;
    }
    this.draw();
  }

  see(region) {
    const { x, y, width, height } = boxOf(region);
    this.host.fit({ x: x - 0.1 * width, y: y - 0.1 * height, width: 1.2 * width, height: 1.2 * height });
    this.draw();
  }

  // ---- the picture ----

  draw() {
    if (!this.canvas) return;
    const pen = emptied(this.canvas);
    if (!this.slide || !this.host.isOpen()) return;
    const { left, top, scale } = this.host.frame();
    const at = ([x, y]) => [x * scale + left, y * scale + top];
    for (const region of this.known.values()) this.drawRegion(pen, at, region.id === this.edited?.id ? this.edited : region);
    const place = this.mode === "place" ? this.cursor && { x: this.cursor[0], y: this.cursor[1], field_diameter_mm: this.fields } : this.place;
    if (place) this.drawPlace(pen, at, scale, place);
    if (this.points.length) this.drawPoints(pen, at);
    if (this.mode === "edit") this.drawCorners(pen, at);
    else if (this.mode && this.cursor) this.drawCross(pen, at(this.cursor));
  }

  path(pen, at, rings) {
    pen.beginPath();
    for (const ring of rings) {
      ring.forEach((corner, index) => (index ? pen.lineTo(...at(corner)) : pen.moveTo(...at(corner))));
      pen.closePath();
    }
  }

  line(pen, colour, width, dashes = []) {
    pen.setLineDash([]);
    pen.strokeStyle = "rgb(255 255 255 / .8)";
    pen.lineWidth = width + 2.4;
    pen.stroke();
    pen.setLineDash(dashes);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.stroke();
  }

  drawRegion(pen, at, region) {
    const colour = COLOURS[region.kind];
    this.path(pen, at, ringsOf(region));
    if (region.kind === "exclude") {
      pen.fillStyle = "rgb(168 67 0 / .16)";
      pen.fill("evenodd");
    }
    this.line(pen, colour, 2.2, region.kind === "exclude" ? [8, 5] : []);
    const [x, y] = at(ringsOf(region).flat().reduce((best, corner) => (corner[1] < best[1] ? corner : best)));
    pen.font = "600 13px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.strokeStyle = "#fff";
    pen.lineWidth = 4;
    pen.setLineDash([]);
    pen.strokeText(region.name, x, y - 7);
    pen.fillStyle = colour;
    pen.fillText(region.name, x, y - 7);
  }

  drawPlace(pen, at, scale, place) {
    const circles = place.field_diameter_mm ? fieldsOf(place, this.slide.mpp) : this.count ? [[place.x, place.y, Math.sqrt((this.count.config.area_mm2 * 1e6) / Math.PI) / this.slide.mpp]] : [];
    for (const [x, y, radius] of circles) {
      pen.beginPath();
      pen.arc(...at([x, y]), radius * scale, 0, 2 * Math.PI);
      this.line(pen, BLUE, 2.2, this.mode === "place" ? [5, 4] : []);
    }
  }

  drawPoints(pen, at) {
    pen.beginPath();
    const corners = this.cursor && this.mode === "polygon" ? [...this.points, this.cursor] : this.points;
    corners.forEach((corner, index) => (index ? pen.lineTo(...at(corner)) : pen.moveTo(...at(corner))));
    this.line(pen, COLOURS[this.kind.value], 2.2);
    if (this.mode === "polygon") for (const corner of this.points) this.dot(pen, at(corner), "#fff");
  }

  drawCorners(pen, at) {
    this.edited.polygons.forEach((polygon, one) => polygon.forEach((ring, two) => ring.forEach((corner, three) => {
      this.dot(pen, at(corner), same([one, two, three], this.corner) ? "#ffd24d" : "#fff");
    })));
  }

  dot(pen, [x, y], colour) {
    pen.setLineDash([]);
    pen.beginPath();
    pen.arc(x, y, 5, 0, 2 * Math.PI);
    pen.fillStyle = colour;
    pen.fill();
    pen.strokeStyle = "#14161a";
    pen.lineWidth = 1.6;
    pen.stroke();
  }

  drawCross(pen, [x, y]) {
    pen.beginPath();
    for (const [dx, dy] of [[1, 0], [0, 1]]) {
      pen.moveTo(x - 11 * dx, y - 11 * dy);
      pen.lineTo(x + 11 * dx, y + 11 * dy);
    }
    this.line(pen, "#14161a", 1.6);
  }
}
