// What a microscope has: magnifications, and a ruler.

export const LENSES = [2.5, 5, 10, 20, 40];
const UM_PER_PX = 10; // on the screen at 1x: 40x is 0.25
const SAME = 0.02;

// The magnification at which a pixel of the screen shows so many micrometres, and the other way round.
export const magnification = (um) => UM_PER_PX / um;

export const lensText = (value) => `${Number(value.toPrecision(value < 10 ? 2 : 3))}x`;

export const isLens = (value, lens) => Math.abs(value / lens - 1) < SAME;

export function lengthText(um) {
  return um >= 1000 ? `${Number((um / 1000).toPrecision(3))} mm` : `${Number(um.toPrecision(3))} µm`;
}

// From the first press to the second; the third takes it away.
export class Ruler {
  constructor() {
    this.clear();
  }

  clear() {
    this.from = this.to = null;
  }

  press(place) {
    if (this.to) this.clear();
    else if (this.from) this.to = place;
    else this.from = place;
  }

  // Both ends, the second at `place` until it is pressed; null without a first.
  ends(place) {
    return this.from ? [this.from, this.to ?? place] : null;
  }
}

export const distance = ([one, two], mpp) => Math.hypot(one.x - two.x, one.y - two.y) * mpp;
