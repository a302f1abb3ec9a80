// Answers on their way to the server. Each waits in the browser's storage until the server has it on disk, so
// that neither a stopped server nor a closed tab loses one. Sending twice is harmless: the uuid is written once.

const BATCH = 50;
const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 5000;
const TIMEOUT_MS = 15000;

export class Outbox {
  // `changed(state, waiting)` hears of every change; state is "saved", "saving", "failing", "locked" or "refused".
  constructor(project, observer, changed, batch = BATCH) {
    this.prefix = `metaphase-label/${project}/${observer}/`;
    this.observer = observer;
    this.changed = changed;
    this.batch = batch;
    this.waiting = this.stored();
    this.running = false;
    this.deliver();
  }

  add(item, answer, seconds) {
    const entry = { uuid: newUuid(), item, answer, seconds, at: Date.now() };
    this.waiting.push(entry);
    this.keep(entry);
    this.deliver();
  }

  stored() {
    const entries = [];
    for (const key of Object.keys(localStorage)) {
      if (key.startsWith(this.prefix)) entries.push(JSON.parse(localStorage.getItem(key)));
    }
    return entries.sort((one, two) => one.at - two.at);
  }

  keep(entry) {
    try {
      localStorage.setItem(this.prefix + entry.uuid, JSON.stringify(entry));
    } catch {
      // Storage full or forbidden: the answer still waits in memory.
    }
  }

  async deliver() {
    if (this.running) return;
    this.running = true;
    let pause = FIRST_PAUSE_MS;
    while (this.waiting.length) {
      if (pause === FIRST_PAUSE_MS) this.tell("saving");
      const problem = await this.post(this.waiting.slice(0, this.batch));
      if (problem) {
        this.tell(problem);
        await new Promise((resolve) => setTimeout(resolve, pause));
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      } else {
        pause = FIRST_PAUSE_MS;
      }
    }
    this.running = false;
    this.tell("saved");
  }

  // Returns what is wrong, or nothing once the server has the batch.
  async post(batch) {
    const answers = batch.map(({ uuid, item, answer, seconds }) => ({ uuid, item, answer, seconds }));
    try {
      const response = await fetch("/api/answers", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ observer: this.observer, answers }),
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      if (response.status === 403) return "locked";
      if (!response.ok) return "failing";
      const receipt = await response.json();
      this.forget([...receipt.saved, ...receipt.refused]);
      if (receipt.refused.length) this.tell("refused");
      return null;
    } catch {
      return "failing";
    }
  }

  forget(uuids) {
    const gone = new Set(uuids);
    this.waiting = this.waiting.filter((entry) => !gone.has(entry.uuid));
    for (const uuid of gone) localStorage.removeItem(this.prefix + uuid);
  }

  tell(state) {
    this.changed(state, this.waiting.length);
  }
}

// crypto.randomUUID is absent from plain HTTP pages that are not on localhost.
function newUuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
