// The figures under review as pictures side by side: one press each, or many at once.

import { $ } from "/controls.js";

const WORDS = { mitosis: "Mitosis", not: "Not", unsure: "Unsure" };
const BRIEF = { mitosis: "M", not: "N", unsure: "U" };

export class Grid {
  // `give(answer, items)` answers, `look(item)` makes an item the current one, `facts(item)` is what may be said of it.
  constructor({ give, look, facts }) {
    Object.assign(this, { give, look, facts });
    this.selected = new Set();
    this.items = null;
  }

  get columns() {
    return getComputedStyle($("cells")).gridTemplateColumns.split(" ").length;
  }

  // What an answer is about: all that is selected, else the current one.
  chosen(review) {
    const items = review.items.filter((item) => this.selected.has(item));
    return items.length ? items : undefined;
  }

  toggle(item) {
    if (!this.selected.delete(item)) this.selected.add(item);
  }

  show(review) {
    if (this.items !== review.items) {
      this.items = review.items;
      this.selected.clear();
      $("cells").replaceChildren(...review.items.map((item, index) => this.cell(review, item, index)));
    }
    review.items.forEach((item, index) => this.refresh(review, item, $("cells").children[index], index));
  }

  cell(review, item, index) {
    const cell = document.createElement("li");
    const choose = Object.assign(document.createElement("button"), { type: "button", className: "picture" });
    const address = `${review.slide.figures}/${item.x}_${item.y}.jpg`;
    choose.append(Object.assign(new Image(), { src: address, alt: "", loading: index > 40 ? "lazy" : "eager" }), document.createElement("span"));
    choose.onclick = () => {
      this.toggle(item);
      this.look(item);
    };
    choose.ondblclick = () => this.look(item, true);
    const answers = Object.entries(WORDS).map(([answer, words]) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: BRIEF[answer], title: words });
      button.setAttribute("aria-label", `Figure ${index + 1}: ${words}`);
      button.dataset.says = answer;
      button.onclick = () => this.give(answer, [item]);
      return button;
    });
    cell.append(choose, ...answers);
    return cell;
  }

  refresh(review, item, cell, index) {
    const answer = review.ownAnswer(item);
    const said = answer ? WORDS[answer] : "";
    const atypical = review.isAtypical(item) ? ", atypical" : "";
    const current = item === review.current;
    const [choose, ...answers] = cell.children;
    const facts = this.facts(item);
    cell.dataset.says = answer ?? "";
    choose.lastChild.textContent = [said + atypical, facts].filter(Boolean).join(" · ");
    choose.setAttribute("aria-label", `Figure ${index + 1} of ${review.items.length}, ${said ? said + atypical : "not answered"}`);
    choose.setAttribute("aria-pressed", String(this.selected.has(item)));
    if (current) choose.setAttribute("aria-current", "true");
    else choose.removeAttribute("aria-current");
    for (const button of answers) button.setAttribute("aria-pressed", String(button.dataset.says === answer));
  }

  // The keyboard goes where the review is.
  follow(review) {
    const choose = $("cells").children[review.position]?.firstChild;
    if (review.ended || !choose) return;
    choose.focus({ preventScroll: true });
    choose.scrollIntoView({ block: "nearest" });
  }
}
