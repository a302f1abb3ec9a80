// What is drawn over the slide: tissue, density, hotspot, detections by probability, and what people said of them.

const RING_UM = 9; // half the width of a ring, that of the reports' figures
const LEAST_PX = 5;
const COLOURS = { mitosis: "#3fbf7f", not: "#e2774a", unsure: "#a88fd0" };
const OPEN = "#1d2a3a"; // of what is to be judged without its probability
// Viridis: equal steps look equal, to colour-blind eyes as well.
const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

// From violet (improbable) to yellow (certain).
export function colourOf(probability, lowest) {
  const place = 8 * Math.max(0, Math.min(1, (probability - lowest) / (1 - lowest || 1)));
  const [low, part] = [Math.min(7, Math.floor(place)), place - Math.min(7, Math.floor(place))];
  return `rgb(${VIRIDIS[low].map((value, index) => Math.round(value + part * (VIRIDIS[low + 1][index] - value))).join(" ")})`;
}

// The context of a canvas that is empty, and as sharp as the screen.
export function emptied(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

export class Marks {
  constructor(canvas) {
    this.canvas = canvas;
    this.layers = {};
    this.hidden = false;
    this.heat = null;
  }

  // `frame` tells where level-0 pixels are on the screen: x * scale + left, y * scale + top.
  draw(frame, slide, { threshold, count, view, review, current, within, veiled, ruler }) {
    const pen = emptied(this.canvas);
    if (this.hidden || !slide) return;
    const at = (x, y) => [x * frame.scale + frame.left, y * frame.scale + frame.top];
    if (this.layers.density && this.heat && view?.density) this.drawDensity(pen, at, frame, slide, view.density);
    if (this.layers.tissue) {
      this.outline(pen, at, slide);
      this.stroke(pen, "#2d5b3f", 1.6, []);
    }
    if (this.layers.runner && view?.runner_up) this.circle(pen, at, frame, view.runner_up, "#0a3fae", [7, 6]);
    if (this.layers.hotspot && count?.hotspot.count && !count.scope.place) this.circle(pen, at, frame, count.hotspot, "#0a3fae", []);
    this.drawDetections(pen, at, frame, slide, { threshold, review, width: this.canvas.clientWidth, height: this.canvas.clientHeight, within, veiled });
    if (current) this.drawCurrent(pen, at, frame, slide, current);
    (review?.notes ?? []).forEach((note, index) => this.letter(pen, at(note.x, note.y), String(index + 1), true));
    if (ruler) this.drawRuler(pen, at, ruler);
  }

  // On tissue only.
  drawDensity(pen, at, frame, slide, density) {
    const [x, y] = at(density.x, density.y);
    pen.save();
    this.outline(pen, at, slide);
    if (slide.outline.length) pen.clip("evenodd");
    pen.drawImage(this.heat, x, y, density.width * frame.scale, density.height * frame.scale);
    pen.restore();
  }

  outline(pen, at, slide) {
    pen.beginPath();
    for (const ring of slide.outline) {
      for (let index = 0; index < ring.length; index += 2) {
        const [x, y] = at(ring[index], ring[index + 1]);
        if (index) pen.lineTo(x, y);
        else pen.moveTo(x, y);
      }
      pen.closePath();
    }
  }

  circle(pen, at, frame, circle, colour, dashes) {
    const [x, y] = at(circle.x, circle.y);
    pen.beginPath();
    pen.arc(x, y, circle.radius_px * frame.scale, 0, 2 * Math.PI);
    this.stroke(pen, colour, 2.4, dashes);
  }

  drawDetections(pen, at, frame, slide, { threshold, review, width, height, within, veiled }) {
    const radius = Math.max(LEAST_PX, (RING_UM / slide.mpp) * frame.scale);
    const inView = ([x, y]) => x > -radius && y > -radius && x < width + radius && y < height + radius;
    for (let row = slide.x.length - 1; row >= 0; row -= 1) {
      const probability = slide.probability[row];
      const answer = review?.answerAt(slide.x[row], slide.y[row]);
      const counts = probability >= threshold && within.countsRow(row);
      const asked = veiled?.has(row);
      if (!answer && !(asked || counts ? this.layers.detections : this.layers.below)) continue;
      const place = at(...(review?.placeOf(slide.x[row], slide.y[row]) ?? [slide.x[row], slide.y[row]]));
      if (!inView(place)) continue;
      const colour = COLOURS[answer] ?? (veiled ? OPEN : colourOf(probability, slide.lowest));
      this.ring(pen, place, radius, colour, { thin: !veiled && !counts && !answer, answer });
      if (review?.isAtypical({ x: slide.x[row], y: slide.y[row] })) this.letter(pen, [place[0] + radius, place[1] - radius], "A");
    }
    for (const added of review?.added() ?? []) {
      const place = at(added.x, added.y);
      if (inView(place)) this.ring(pen, place, radius, COLOURS[added.answer], { answer: added.answer });
    }
  }

  ring(pen, [x, y], radius, colour, { thin = false, answer = "" }) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    this.stroke(pen, colour, thin ? 1.2 : 2.2, answer === "unsure" ? [4, 4] : [], thin ? 0.5 : 0.9);
    if (answer === "not") {
      const reach = radius * 0.7;
      pen.beginPath();
      pen.moveTo(x - reach, y - reach);
      pen.lineTo(x + reach, y + reach);
      this.stroke(pen, colour, 2, []);
    }
  }

  drawCurrent(pen, at, frame, slide, current) {
    const [x, y] = at(current.x, current.y);
    const radius = Math.max(LEAST_PX + 4, (RING_UM / slide.mpp) * frame.scale + 5);
    const reach = radius * 0.35;
    pen.beginPath();
    for (const [sx, sy] of [[-1, -1], [1, -1], [1, 1], [-1, 1]]) {
      pen.moveTo(x + sx * radius, y + sy * (radius - reach));
      pen.lineTo(x + sx * radius, y + sy * radius);
      pen.lineTo(x + sx * (radius - reach), y + sy * radius);
    }
    this.stroke(pen, "#111", 2.2, []);
  }

  // A letter or number; of a note in a box whose corner is its position.
  letter(pen, [x, y], text, boxed = false) {
    pen.font = "600 13px system-ui, sans-serif";
    const width = pen.measureText(text).width + 8;
    pen.fillStyle = boxed ? "#14161a" : "#fff";
    pen.fillRect(x, y - 18, width, 18);
    pen.fillStyle = boxed ? "#fff" : "#14161a";
    pen.fillText(text, x + 4, y - 4);
  }

  drawRuler(pen, at, { ends, text }) {
    const [one, two] = ends.map((end) => at(end.x, end.y));
    pen.beginPath();
    pen.moveTo(...one);
    pen.lineTo(...two);
    this.stroke(pen, "#111", 2, []);
    for (const [x, y] of [one, two]) {
      pen.beginPath();
      pen.arc(x, y, 3, 0, 2 * Math.PI);
      this.stroke(pen, "#111", 2, []);
    }
    this.letter(pen, [(one[0] + two[0]) / 2, (one[1] + two[1]) / 2], text, true);
  }

  stroke(pen, colour, width, dashes, halo = 0.75) {
    pen.setLineDash(dashes);
    pen.strokeStyle = `rgb(255 255 255 / ${halo})`;
    pen.lineWidth = width + 2.4;
    pen.stroke();
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.stroke();
  }
}
