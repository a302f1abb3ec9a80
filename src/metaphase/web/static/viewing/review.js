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
    this.position = 0;
    this.seek(0);
  }

  // The item that an answer is about; none at the end, where nothing can be overwritten by chance.
  get current() {
    return this.ended ? null : this.items[this.position] ?? null;
  }

  // How many of the items were accepted, rejected and left unsure, and how many mitoses were added elsewhere.
  get tally() {
    const tally = { mitosis: 0, not: 0, unsure: 0, added: 0 };
    for (const [key, { answer }] of this.own) {
      if (this.known.has(key)) tally[verdict(answer)] += 1;
      else if (verdict(answer) === "mitosis") tally.added += 1;
    }
    return tally;
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

  // To the next item without answer from a position on, round the end; to the end where none is left.
  seek(from) {
    const count = this.items.length;
    for (let step = 0; step < count; step += 1) {
      const position = (from + step) % count;
      if (!this.own.has(name(this.items[position].x, this.items[position].y))) return this.turn(position);
    }
    return this.turn(count);
  }

  // To a position; beyond the last is the end, from which one step back leads to where one was.
  turn(position) {
    this.ended = position >= this.items.length;
    if (!this.ended) this.position = Math.max(0, position);
    this.since = performance.now();
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
    if (!this.ended) this.turn(this.position + step);
    else if (step < 0) this.turn(this.position);
  }

  finish() {
    this.turn(this.items.length);
  }

  select(row) {
    this.turn(this.items.findIndex((item) => item.row === row));
  }

  // Answers the current item and goes on; returns the answer that it had before, or null.
  give(answer) {
    if (!this.current) return null;
    const before = this.ownAnswer(this.current) ?? null;
    this.record(this.current.x, this.current.y, answer);
    this.seek(this.position + 1);
    return before;
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
    if (back >= 0) this.turn(back);
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
