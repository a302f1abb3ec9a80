// Pictures of items, fetched ahead and kept decoded, so that the next one is there when it is wanted.

const KEPT = 160;
const AT_ONCE = 3; // a browser opens six connections at most; answers need one too
const PAUSE_MS = 1000;
const LATER = new Set([403, 503]); // a new token, or a server in trouble: worth waiting for

export class Pictures {
  constructor(base) {
    this.base = base;
    this.kept = new Map(); // "item/view" -> promise of an image element, or of null where there is no picture
    this.queue = [];
    this.active = 0;
  }

  // An image element, or null where the server has no picture. Waits out a server that is down.
  get(item, view) {
    return this.wanted(item, view, true);
  }

  // Fetch these later, after what is wanted now; earlier plans are dropped.
  plan(wishes) {
    this.queue = this.queue.filter((job) => job.urgent || !this.kept.delete(job.key));
    for (const [item, view] of wishes) this.wanted(item, view, false);
  }

  wanted(item, view, urgent) {
    const key = `${item}/${view}`;
    let promise = this.kept.get(key);
    const queued = this.queue.find((job) => job.key === key);
    if (queued && urgent) this.hurry(queued);
    if (!promise) {
      promise = new Promise((resolve) => {
        const job = { key, resolve, urgent };
        if (urgent) this.queue.unshift(job);
        else this.queue.push(job);
      });
    }
    this.kept.delete(key);
    this.kept.set(key, promise); // the latest last
    this.trim();
    this.work();
    return promise;
  }

  hurry(job) {
    job.urgent = true;
    this.queue.splice(this.queue.indexOf(job), 1);
    this.queue.unshift(job);
  }

  work() {
    while (this.active < AT_ONCE && this.queue.length) {
      const job = this.queue.shift();
      this.active += 1;
      this.load(job).finally(() => {
        this.active -= 1;
        this.work();
      });
    }
  }

  async load(job) {
    for (;;) {
      try {
        const response = await fetch(`${this.base}/${job.key}.jpg`);
        if (response.ok) return job.resolve(await decoded(await response.blob()));
        if (!LATER.has(response.status)) return job.resolve(null);
      } catch {
        // The server is down: try again below.
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  trim() {
    for (const [key, promise] of this.kept) {
      if (this.kept.size <= KEPT) return;
      if (this.queue.some((job) => job.key === key)) continue;
      this.kept.delete(key);
      promise.then((image) => image && URL.revokeObjectURL(image.src));
    }
  }
}

async function decoded(blob) {
  const image = new Image();
  image.src = URL.createObjectURL(blob);
  image.alt = "";
  image.draggable = false;
  await image.decode().catch(() => {});
  return image;
}
