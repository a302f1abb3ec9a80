// Tiles for OpenSeadragon: the latest wanted first, and what has left the view is given up, here and on the server.

const AT_ONCE = 6; // what a browser keeps open to one server
export const GIVEN_UP = "given up";

export class TileQueue {
  constructor() {
    this.waiting = [];
    this.running = new Map();
  }

  add(job) {
    this.waiting.push(job);
    this.next();
  }

  // Gives up every tile that `wanted(address)` is false of.
  keep(wanted) {
    const gone = (job) => !wanted(job.src);
    const left = this.waiting.filter(gone);
    this.waiting = this.waiting.filter((job) => !gone(job));
    for (const [job, control] of this.running) if (gone(job)) control.abort();
    for (const job of left) job.finish(null, null, GIVEN_UP);
  }

  abort(job) {
    this.waiting = this.waiting.filter((other) => other !== job);
    this.running.get(job)?.abort();
  }

  next() {
    while (this.running.size < AT_ONCE && this.waiting.length) this.load(this.waiting.pop());
  }

  async load(job) {
    const control = new AbortController();
    this.running.set(job, control);
    try {
      const image = await picture(job.src, control.signal);
      this.running.delete(job);
      job.finish(image, null, null);
    } catch (error) {
      this.running.delete(job);
      job.finish(null, null, control.signal.aborted ? GIVEN_UP : String(error));
    }
    this.next();
  }
}

async function picture(address, signal) {
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error(`${response.status}`);
  const blob = URL.createObjectURL(await response.blob());
  const image = new Image();
  image.src = blob;
  await image.decode();
  URL.revokeObjectURL(blob);
  return image;
}

export function tileSource(slide, queue) {
  return new OpenSeadragon.TileSource({
    width: slide.width,
    height: slide.height,
    tileSize: slide.tile_px,
    tileOverlap: 0,
    minLevel: 0,
    maxLevel: slide.levels,
    getTileUrl: (level, column, row) => `${slide.tiles}/${slide.levels - level}/${column}_${row}.${slide.ending ?? "jpg"}`,
    downloadTileStart: (job) => queue.add(job),
    downloadTileAbort: (job) => queue.abort(job),
  });
}

// Whether a tile's address is of the slide or a layer of it and touches a box (level-0 pixels), grown by half of itself.
export function touches(slide, address, box) {
  const found = address.match(/\/(\d+)\/(\d+)_(\d+)\.(jpg|png)$/);
  if (!found || ![slide, ...slide.layers].some((one) => address.includes(one.tiles))) return false;
  const side = slide.tile_px * 2 ** Number(found[1]);
  const [left, top] = [Number(found[2]) * side, Number(found[3]) * side];
  const [grownX, grownY] = [box.width / 2, box.height / 2];
  return (
    left < box.x + box.width + grownX && left + side > box.x - grownX &&
    top < box.y + box.height + grownY && top + side > box.y - grownY
  );
}

// Addresses of the tiles of a box at a level.
export function tilesOf(slide, box, level) {
  const side = slide.tile_px * 2 ** level;
  const range = (start, length, limit) => {
    const first = Math.max(0, Math.floor(start / side));
    const last = Math.min(Math.ceil(limit / side) - 1, Math.floor((start + length) / side));
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
  };
  return range(box.y, box.height, slide.height).flatMap((row) =>
    range(box.x, box.width, slide.width).map((column) => `${slide.tiles}/${level}/${column}_${row}.jpg`));
}
