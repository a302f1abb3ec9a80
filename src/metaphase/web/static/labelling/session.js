// One observer's work: what was answered, where we are, what can be undone. Knows nothing of the page.

export const PER_PAGE = 12;
const LONGEST_S = 300; // somebody who went for coffee did not look at one item for an hour

export class Session {
  constructor(state) {
    this.items = state.items;
    this.answers = state.answers;
    this.position = 0;
    this.unavailable = new Set();
    this.history = [];
    this.watch = new Stopwatch();
    this.take(state);
    this.resume();
  }

  // To the first open item; `ended` when there is none.
  resume(from = 0) {
    this.ended = !this.goToOpen(from);
  }

  // Answers as the server has them, from whatever device.
  take(state) {
    this.given = new Map(state.given);
    this.seconds = state.seconds;
    if (!this.history.length) this.history = state.given.map(([item]) => ({ item, before: null }));
  }

  get item() {
    return this.items[this.position];
  }

  get done() {
    return this.given.size;
  }

  // All that is answered or can be shown.
  get total() {
    return this.items.filter((item) => this.given.has(item) || !this.unavailable.has(item)).length;
  }

  isOpen(item) {
    return !this.given.has(item) && !this.unavailable.has(item);
  }

  // Sets an answer (null takes it back) and returns the seconds it took.
  answer(item, answer) {
    this.history.push({ item, before: this.given.get(item) ?? null });
    return this.set(item, answer);
  }

  // Takes the latest answer back; returns [item, what stood before, seconds], or null with nothing to undo.
  undo() {
    const last = this.history.pop();
    if (!last) return null;
    this.goTo(last.item);
    return [last.item, last.before, this.set(last.item, last.before)];
  }

  set(item, answer) {
    if (answer === null) this.given.delete(item);
    else this.given.set(item, answer);
    const seconds = this.watch.lap();
    this.seconds += seconds;
    return seconds;
  }

  // The next item without answer at or after a position, round the end; stays where none is left.
  goToOpen(from) {
    const count = this.items.length;
    for (let step = 0; step < count; step += 1) {
      const position = (from + step) % count;
      if (this.isOpen(this.items[position])) {
        this.position = position;
        return true;
      }
    }
    return false;
  }

  goTo(item) {
    this.position = this.items.indexOf(item);
    this.ended = false;
  }

  // A step to a neighbour, answered or not; from the end, back to the last item.
  move(step) {
    if (this.ended) step = 0;
    this.ended = false;
    this.position = Math.max(0, Math.min(this.items.length - 1, this.position + step));
  }

  get page() {
    const first = this.position - (this.position % PER_PAGE);
    return this.items.slice(first, first + PER_PAGE);
  }

  // The items that will most likely be shown next, nearest first.
  ahead(count) {
    const found = [];
    for (let step = 1; step < this.items.length && found.length < count; step += 1) {
      const item = this.items[(this.position + step) % this.items.length];
      if (this.isOpen(item)) found.push(item);
    }
    return found;
  }
}

// Counts while the page is visible.
class Stopwatch {
  constructor() {
    this.passed = 0;
    this.since = document.hidden ? null : performance.now();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.passed = this.elapsed();
      this.since = document.hidden ? null : performance.now();
    });
  }

  elapsed() {
    return this.passed + (this.since === null ? 0 : (performance.now() - this.since) / 1000);
  }

  lap() {
    const seconds = Math.min(this.elapsed(), LONGEST_S);
    this.passed = 0;
    this.since = document.hidden ? null : performance.now();
    return Math.round(seconds * 1000) / 1000;
  }
}
