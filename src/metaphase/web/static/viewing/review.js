// One observer's review of one slide: what is asked, what was answered, what can be undone. Knows nothing of the page.

export const ANSWER = "answer";
export const ATYPICAL = "atypical";
export const NOTE = "note";
const LONGEST_S = 300;
const name = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;
const verdict = (answer) => (answer?.startsWith("moved ") ? "mitosis" : answer);

export class Review {
  // `send(item, answer, seconds)` passes an answer or a mark on.
  constructor(slide, state, waiting, send) {
    this.slide = slide;
    this.send = send;
    this.all = slide.order.map((row) => ({ x: slide.x[row], y: slide.y[row], row }));
    this.items = this.all;
    this.known = new Set(this.all.map((item) => name(item.x, item.y)));
    this.own = new Map();
    this.others = new Map();
    this.marks = new Map();
    this.history = [];
    this.seconds = state.seconds ?? 0;
    for (const one of state.standing) (one.own ? this.own : this.others).set(name(one.x, one.y), one);
    for (const one of state.marks ?? []) this.marks.set(`${one.own ? "" : `${one.observer} `}${one.kind} ${name(one.x, one.y)}`, one);
    for (const { item, answer } of waiting) if (item.slide === slide.key) this.put({ ...item, said: answer });
    this.since = performance.now();
    this.position = 0;
    this.seek(0);
  }

  // Asks about those items alone that are wanted, from the first open one on.
  limit(wanted) {
    this.items = this.all.filter(wanted);
    this.seek(0);
  }

  // The item that an answer is about; none at the end, where nothing can be overwritten by chance.
  get current() {
    return this.ended ? null : this.items[this.position] ?? null;
  }

  // How many of the items were accepted, rejected and left unsure, and how many mitoses were added elsewhere.
  get tally() {
    const tally = { mitosis: 0, not: 0, unsure: 0, added: 0, atypical: 0 };
    for (const [key, { answer }] of this.own) {
      if (this.known.has(key)) tally[verdict(answer)] += 1;
      else if (verdict(answer) === "mitosis") tally.added += 1;
    }
    for (const one of this.marks.values()) if (one.own && one.kind === ATYPICAL) tally.atypical += 1;
    return tally;
  }

  get done() {
    return this.items.filter((item) => this.own.has(name(item.x, item.y))).length;
  }

  get open() {
    return this.items.filter((item) => !this.own.has(name(item.x, item.y)));
  }

  // Everybody's notes.
  get notes() {
    return [...this.marks.values()].filter((one) => one.kind === NOTE);
  }

  answerAt(x, y) {
    const key = name(x, y);
    return verdict((this.own.get(key) ?? this.others.get(key))?.answer);
  }

  ownAnswer(item) {
    return verdict(this.own.get(name(item.x, item.y))?.answer);
  }

  isAtypical({ x, y }) {
    return this.marks.has(`${ATYPICAL} ${name(x, y)}`);
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
    if (!this.ended) this.turn(Math.min(this.position + step, this.items.length));
    else if (step < 0) this.turn(Math.min(this.position, this.items.length - 1));
  }

  finish() {
    this.turn(this.items.length);
  }

  // One that is not asked about is asked now.
  select(row) {
    if (!this.items.some((item) => item.row === row)) this.items = [...this.items, this.all.find((item) => item.row === row)];
    this.turn(this.items.findIndex((item) => item.row === row));
  }

  // Answers items, by default the current one, in one step, and goes on; returns the answer that the first had before, or null.
  give(answer, items = this.current ? [this.current] : []) {
    if (!items.length) return null;
    const before = this.ownAnswer(items[0]) ?? null;
    const from = items.includes(this.current) || this.ended ? this.position + 1 : this.position;
    this.record(items.flatMap(({ x, y }) => [
      { kind: ANSWER, x, y, said: answer },
      ...(answer !== "mitosis" && this.isAtypical({ x, y }) ? [{ kind: ATYPICAL, x, y, said: null }] : []),
    ]));
    this.seek(from);
    return before;
  }

  // Marks items as atypical mitotic figures, which they thereby are, or takes the marks back; returns whether they have them.
  markAtypical(items) {
    const marked = !items.every((item) => this.isAtypical(item));
    this.record(items.flatMap((item) => {
      const { x, y } = item;
      const also = !marked || this.ownAnswer(item) === "mitosis" ? [] : [{ kind: ANSWER, x, y, said: "mitosis" }];
      return [...also, { kind: ATYPICAL, x, y, said: marked ? ATYPICAL : null }];
    }));
    return marked;
  }

  // Writes a note at a position; without text, takes it back.
  write(x, y, text) {
    this.record([{ kind: NOTE, x: Number(x.toFixed(1)), y: Number(y.toFixed(1)), said: text || null }]);
  }

  add(x, y) {
    this.record([{ kind: ANSWER, x: Number(x.toFixed(1)), y: Number(y.toFixed(1)), said: "mitosis" }]);
  }

  move(x, y) {
    if (this.current) this.record([{ kind: ANSWER, x: this.current.x, y: this.current.y, said: `moved ${name(x, y)}` }]);
  }

  // Takes the latest step back; returns its first place, or null.
  undo() {
    const last = this.history.pop();
    if (!last) return null;
    this.pass(last.map(({ kind, x, y, before }) => ({ kind, x, y, said: before })));
    const back = this.items.findIndex((item) => item.x === last[0].x && item.y === last[0].y);
    if (back >= 0) this.turn(back);
    return last[0];
  }

  record(changes) {
    this.history.push(changes.map((one) => ({ ...one, before: this.said(one) })));
    this.pass(changes);
  }

  said({ kind, x, y }) {
    if (kind === ANSWER) return this.own.get(name(x, y))?.answer ?? null;
    return this.marks.get(`${kind} ${name(x, y)}`)?.text ?? null;
  }

  // What is answered together took its time once.
  pass(changes) {
    let seconds = Math.min(LONGEST_S, Math.round(performance.now() - this.since) / 1000);
    this.since = performance.now();
    this.seconds += seconds;
    for (const one of changes) {
      const { kind, x, y, said } = one;
      this.put(one);
      this.send({ slide: this.slide.key, x, y, kind }, said, seconds);
      seconds = 0;
    }
  }

  put({ kind = ANSWER, x, y, said }) {
    const [all, key] = kind === ANSWER ? [this.own, name(x, y)] : [this.marks, `${kind} ${name(x, y)}`];
    if (said === null) all.delete(key);
    else all.set(key, kind === ANSWER ? { x, y, answer: said, own: true } : { kind, x, y, text: said, own: true });
  }
}
