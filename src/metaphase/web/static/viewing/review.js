// One observer's review of one slide: what was answered, what comes next, what can be undone. Knows nothing of the page.

const LONGEST_S = 300;
const name = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;
const verdict = (answer) => (answer?.startsWith("moved ") ? "mitosis" : answer);

export class Review {
  // `send(item, answer, seconds)` passes an answer on.
  constructor(slide, state, waiting, send) {
    this.slide = slide;
    this.send = send;
    this.items = slide.order.map((row) => ({ x: slide.x[row], y: slide.y[row], row }));
    this.known = new Set(this.items.map((item) => name(item.x, item.y)));
    this.own = new Map();
    this.others = new Map();
    this.history = [];
    for (const one of state.standing) (one.own ? this.own : this.others).set(name(one.x, one.y), one);
    for (const { item, answer } of waiting) if (item.slide === slide.key) this.put(item.x, item.y, answer);
    this.since = performance.now();
    this.position = this.open(0);
  }

  get current() {
    return this.items[this.position] ?? null;
  }

  get done() {
    return this.items.filter((item) => this.own.has(name(item.x, item.y))).length;
  }

  answerAt(x, y) {
    const key = name(x, y);
    return verdict((this.own.get(key) ?? this.others.get(key))?.answer);
  }

  ownAnswer(item) {
    return verdict(this.own.get(name(item.x, item.y))?.answer);
  }

  // Where a detection was moved to, or null.
  placeOf(x, y) {
    const answer = this.own.get(name(x, y))?.answer;
    return answer?.startsWith("moved ") ? answer.slice(6).split(" ").map(Number) : null;
  }

  // Answers where no detection lies.
  added() {
    const all = new Map([...this.others, ...this.own]);
    return [...all].filter(([key]) => !this.known.has(key)).map(([, one]) => ({ ...one, answer: verdict(one.answer) }));
  }

  // The next item without answer from a position on, round the end; the position itself where none is left.
  open(from) {
    const count = this.items.length;
    for (let step = 0; step < count; step += 1) {
      const position = (from + step) % count;
      if (!this.own.has(name(this.items[position].x, this.items[position].y))) return position;
    }
    return Math.max(0, Math.min(from, count - 1));
  }

  ahead(count) {
    const found = [];
    for (let step = 1; step < this.items.length && found.length < count; step += 1) {
      const item = this.items[(this.position + step) % this.items.length];
      if (!this.own.has(name(item.x, item.y))) found.push(item);
    }
    return found;
  }

  go(step) {
    this.position = Math.max(0, Math.min(this.items.length - 1, this.position + step));
    this.since = performance.now();
  }

  select(row) {
    this.position = this.items.findIndex((item) => item.row === row);
    this.since = performance.now();
  }

  give(answer) {
    if (!this.current) return;
    this.record(this.current.x, this.current.y, answer);
    this.position = this.open(this.position + 1);
  }

  add(x, y) {
    this.record(Number(x.toFixed(1)), Number(y.toFixed(1)), "mitosis");
  }

  move(x, y) {
    if (this.current) this.record(this.current.x, this.current.y, `moved ${name(x, y)}`);
  }

  // Takes the latest answer back; returns its place, or null.
  undo() {
    const last = this.history.pop();
    if (!last) return null;
    this.put(last.x, last.y, last.before);
    this.pass(last.x, last.y, last.before);
    const back = this.items.findIndex((item) => item.x === last.x && item.y === last.y);
    if (back >= 0) this.position = back;
    return last;
  }

  record(x, y, answer) {
    this.history.push({ x, y, before: this.own.get(name(x, y))?.answer ?? null });
    this.put(x, y, answer);
    this.pass(x, y, answer);
  }

  pass(x, y, answer) {
    const seconds = Math.min(LONGEST_S, Math.round(performance.now() - this.since) / 1000);
    this.since = performance.now();
    this.send({ slide: this.slide.key, x, y }, answer, seconds);
  }

  put(x, y, answer) {
    if (answer === null) this.own.delete(name(x, y));
    else this.own.set(name(x, y), { x, y, answer, own: true });
  }
}
