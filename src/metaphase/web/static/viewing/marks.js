// What is drawn over the slide: tissue, density, hotspot, detections by probability, and what people said of them.

const RING_UM = 9; // half the width of a ring, that of the reports' figures
const LEAST_PX = 5;
const COLOURS = { mitosis: "#3fbf7f", not: "#e2774a", unsure: "#a88fd0" };

// From blue (improbable) to yellow (certain).
export function colourOf(probability, lowest) {
  const share = Math.max(0, Math.min(1, (probability - lowest) / (1 - lowest || 1)));
  return `hsl(${Math.round(225 - 175 * share)} 95% ${Math.round(58 - 4 * share)}%)`;
}

export class Marks {
  constructor(canvas) {
    this.canvas = canvas;
    this.layers = {};
    this.hidden = false;
    this.heat = null;
  }

  // `frame` tells where level-0 pixels are on the screen: x * scale + left, y * scale + top.
  draw(frame, slide, { threshold, count, view, review, current, within }) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    if (this.hidden || !slide) return;
    const at = (x, y) => [x * frame.scale + frame.left, y * frame.scale + frame.top];
    if (this.layers.density && this.heat && view?.density) this.drawDensity(pen, at, frame, slide, view.density);
    if (this.layers.tissue) {
      this.outline(pen, at, slide);
      this.stroke(pen, "#2d5b3f", 1.6, []);
    }
    if (this.layers.runner && view?.runner_up) this.circle(pen, at, frame, view.runner_up, "#0a3fae", [7, 6]);
    if (this.layers.hotspot && count?.hotspot.count && !count.scope.place) this.circle(pen, at, frame, count.hotspot, "#0a3fae", []);
    this.drawDetections(pen, at, frame, slide, { threshold, review, width, height, within });
    if (current) this.drawCurrent(pen, at, frame, slide, current);
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

  drawDetections(pen, at, frame, slide, { threshold, review, width, height, within }) {
    const radius = Math.max(LEAST_PX, (RING_UM / slide.mpp) * frame.scale);
    const inView = ([x, y]) => x > -radius && y > -radius && x < width + radius && y < height + radius;
    for (let row = slide.x.length - 1; row >= 0; row -= 1) {
      const probability = slide.probability[row];
      const answer = review?.answerAt(slide.x[row], slide.y[row]);
      const counts = probability >= threshold && within.countsRow(row);
      if (!answer && !(counts ? this.layers.detections : this.layers.below)) continue;
      const place = at(...(review?.placeOf(slide.x[row], slide.y[row]) ?? [slide.x[row], slide.y[row]]));
      if (!inView(place)) continue;
      this.ring(pen, place, radius, COLOURS[answer] ?? colourOf(probability, slide.lowest), { thin: !counts && !answer, answer });
    }
    for (const added of review?.added() ?? []) {
      const place = at(added.x, added.y);
      if (inView(place)) this.ring(pen, place, radius, COLOURS[added.answer], { answer: added.answer });
    }
  }

  ring(pen, [x, y], radius, colour, { thin = false, answer = "" }) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    this.stroke(pen, colour, thin ? 1.2 : 2.2, [], thin ? 0.5 : 0.9);
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
