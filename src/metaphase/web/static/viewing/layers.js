// Pictures over the slide, in its own pixels: over it with an opacity, or in a second window that follows the first.

import { $ } from "/controls.js";
import { tileSource } from "/tiles.js";

const OPACITY = { phh3: 0.6, probability: 1 };
const WAYS = { off: "Off", over: "Over", beside: "Beside" };

export class Layers {
  // `settings` are those of the first window.
  constructor(viewer, queue, settings) {
    this.viewer = viewer;
    this.queue = queue;
    this.settings = settings;
    this.second = null;
    this.following = false;
    this.shown = {}; // by name: the way, and where it is drawn
    viewer.addHandler("viewport-change", () => this.follow(this.viewer, this.second));
  }

  open(slide) {
    this.slide = slide;
    this.shown = Object.fromEntries(slide.layers.map((layer) => [layer.name, { way: "off", item: null, opacity: OPACITY[layer.name] ?? 1 }]));
    this.divide(null);
    $("overlays").hidden = !slide.layers.length;
    $("overlays").replaceChildren(...slide.layers.map((layer, index) => this.control(layer, index)));
  }

  control(layer, index) {
    const box = Object.assign(document.createElement("fieldset"), { id: `layer-${layer.name}` });
    const title = Object.assign(document.createElement("legend"), { textContent: `${layer.title} ` });
    title.append(Object.assign(document.createElement("kbd"), { textContent: String(7 + index) }));
    const ways = Object.entries(WAYS).map(([way, text]) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "radio", name: `way-${layer.name}`, value: way, checked: way === "off" });
      input.onchange = () => this.show(layer, way);
      label.append(input, text);
      return label;
    });
    const slider = Object.assign(document.createElement("input"), { type: "range", min: "0", max: "1", step: "0.01", value: String(this.shown[layer.name].opacity) });
    slider.setAttribute("aria-label", `Opacity of ${layer.title}`);
    slider.oninput = () => this.fade(layer, Number(slider.value));
    box.append(title, ...ways, slider);
    return box;
  }

  // The next way of the layer at `index`: off, over, beside.
  turn(index) {
    const layer = this.slide?.layers[index];
    if (!layer) return;
    const ways = Object.keys(WAYS);
    const next = ways[(ways.indexOf(this.shown[layer.name].way) + 1) % ways.length];
    document.querySelector(`input[name="way-${layer.name}"][value=${next}]`).click();
  }

  source(layer) {
    return tileSource({ ...this.slide, tiles: layer.tiles, ending: layer.ending }, this.queue);
  }

  show(layer, way) {
    const state = this.shown[layer.name];
    if (state.item) this.viewer.world.removeItem(state.item);
    if (state.way === "beside" && way !== "beside") this.divide(null);
    Object.assign(state, { way, item: null });
    if (way === "over") {
      this.viewer.addTiledImage({
        tileSource: this.source(layer),
        opacity: state.opacity,
        success: ({ item }) => {
          if (state.way === "over" && this.shown[layer.name] === state) state.item = item;
          else this.viewer.world.removeItem(item);
        },
      });
    }
    if (way === "beside") this.divide(layer);
  }

  fade(layer, opacity) {
    this.shown[layer.name].opacity = opacity;
    this.shown[layer.name].item?.setOpacity(opacity);
  }

  // The second window with a layer in it; without one there is none.
  divide(layer) {
    for (const other of this.slide?.layers ?? []) {
      const mine = this.shown[other.name];
      if (layer && other.name !== layer.name && mine.way === "beside") {
        document.querySelector(`input[name="way-${other.name}"][value=off]`).checked = true;
        mine.way = "off";
      }
    }
    $("stage").classList.toggle("divided", Boolean(layer));
    this.second?.destroy();
    this.second = null;
    if (!layer) return;
    this.second = OpenSeadragon({ ...this.settings, element: $("beside"), showNavigator: false, navigatorId: undefined });
    this.second.addHandler("open", () => this.follow(this.viewer, this.second));
    this.second.addHandler("viewport-change", () => this.follow(this.second, this.viewer));
    this.second.addHandler("canvas-key", (event) => {
      event.preventDefaultAction = true;
    });
    this.second.open(this.source(layer));
  }

  follow(leader, other) {
    if (this.following || !leader?.isOpen() || !other?.isOpen()) return;
    this.following = true;
    other.viewport.zoomTo(leader.viewport.getZoom(true), null, true);
    other.viewport.panTo(leader.viewport.getCenter(true), true);
    this.following = false;
  }
}
