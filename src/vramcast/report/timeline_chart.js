/** Draws a timeline on a canvas, with a cursor, a zoom and a table of who is alive. Used by the page and by HTML reports. */

import { Model } from "./timeline_model.js";

/**
 * @typedef {import("./timeline_model.js").Data} Data
 * @typedef {{order: string[], say: Record<string, string>, parts: Record<string, string>, categories: Record<string, string>, phases: Record<string, string>}} Words
 */

const LEFT = 64, RIGHT = 8, ABOVE = 34, BELOW = 22, HEIGHT = 320;
const ROWS = 12; // of the table of who is alive, before the rest is asked for
const GiB = 2 ** 30, MiB = 2 ** 20;

/** @param {number} bytes */
export function sizeText(bytes) {
  if (Math.abs(bytes) >= 10 * GiB) return `${(bytes / GiB).toFixed(1)} GiB`;
  if (Math.abs(bytes) >= GiB / 10) return `${(bytes / GiB).toFixed(2)} GiB`;
  if (Math.abs(bytes) >= MiB / 10) return `${(bytes / MiB).toFixed(1)} MiB`;
  return Math.abs(bytes) >= 1024 ? `${(bytes / 1024).toFixed(1)} KiB` : `${bytes} B`;
}

/** @param {string} tag @param {Record<string, string>} [props] @param {...(Node | string)} children */
function node(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export class TimelineChart {
  /** @param {HTMLElement} host @param {Data} data @param {Words} words @param {number} [top] the highest of several charts, for one scale */
  constructor(host, data, words, top = 0) {
    this.words = words;
    this.model = new Model(data, words.order);
    this.top = Math.max(top, this.model.top()) * 1.04;
    this.from = 0;
    this.to = this.model.count;
    this.cursor = data.peak.event;
    this.pinned = false;
    this.drawn = 0;
    this.shownRows = ROWS;
    this.canvas = /** @type {HTMLCanvasElement} */ (node("canvas", { tabindex: "0", role: "slider", "aria-label": `${words.say.title}: ${data.name}`, "aria-valuemin": "1", "aria-valuemax": String(this.model.count) }));
    this.tip = node("div", { class: "tip" });
    this.tip.hidden = true;
    this.legend = node("ul", { class: "legend" });
    this.alive = node("div", { class: "alive" });
    this.tools = node("div", { class: "tools" });
    this.makeTools();
    host.replaceChildren(this.tools, node("div", { class: "plot" }, this.canvas, this.tip), this.legend, this.alive);
    this.listen();
    new ResizeObserver(() => this.ask()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.ask());
    this.show();
  }

  // ---- what is around the picture

  makeTools() {
    const { say } = this.words;
    const groupings = this.model.groupings();
    this.buttons = groupings.map((name) => {
      const button = node("button", { type: "button", "aria-pressed": "false", "data-grouping": name }, say[`by_${name}`]);
      button.addEventListener("click", () => this.groupBy(name));
      return button;
    });
    /** @type {[string, string, () => void][]} */
    const zooms = [["+", say.zoom_in, () => this.zoom(0.5, this.cursor)], ["−", say.zoom_out, () => this.zoom(2, this.cursor)],
      [say.whole, say.whole, () => this.range(0, this.model.count)], [say.peak, say.to_peak, () => this.toPeak()]];
    const around = zooms.map(([text, label, act]) => {
      const button = node("button", { type: "button", "aria-label": label, title: label }, text);
      button.addEventListener("click", act);
      return button;
    });
    const groups = node("span", { class: "choices", role: "group", "aria-label": say.stacked_by }, ...(groupings.length > 1 ? this.buttons : []));
    this.tools.append(groups, node("span", { class: "choices", role: "group", "aria-label": say.zoom }, ...around));
  }

  /** @param {string} name */
  groupBy(name) {
    this.model.group(name);
    this.show();
  }

  toPeak() {
    const peak = this.model.data.peak.event;
    this.pin(peak);
    const half = Math.max(20, Math.round((this.to - this.from) / 4));
    this.range(peak - half, peak + half);
  }

  show() {
    for (const button of this.buttons ?? []) button.setAttribute("aria-pressed", String(button.dataset.grouping === this.model.grouping));
    this.legend.replaceChildren(...this.model.layers.map((layer) => {
      const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      swatch.setAttribute("class", "swatch");
      swatch.setAttribute("width", "10");
      swatch.setAttribute("height", "10");
      swatch.setAttribute("aria-hidden", "true");
      const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      box.setAttribute("class", `part-${layer.part}`);
      box.setAttribute("width", "10");
      box.setAttribute("height", "10");
      swatch.append(box);
      return node("li", {}, swatch, ` ${this.layerName(layer)}`);
    }));
    this.listAlive();
    this.ask();
  }

  /** @param {import("./timeline_model.js").Layer} layer */
  layerName(layer) {
    if (this.model.grouping === "category") return this.words.parts[layer.name] ?? layer.name;
    return layer.name || this.words.say.others;
  }

  /** @param {number} event */
  moment(event) {
    const phase = this.model.phaseAt(event);
    return `${this.words.phases[phase] ?? phase} · ${this.words.say.event} ${(event + 1).toLocaleString("en")} · ${sizeText(this.model.total[event] ?? 0)}`;
  }

  listAlive() {
    const { say } = this.words;
    const holders = this.model.holders(this.cursor);
    const total = this.model.total[this.cursor] || 1;
    const shown = holders.slice(0, this.shownRows);
    const rest = holders.slice(this.shownRows).reduce((sum, holder) => sum + holder.bytes, 0);
    const rows = shown.map(({ label: [category, module, source, tensor, part], bytes, count }) => {
      const what = [module, tensor].filter(Boolean).join(" · ") || source;
      const where = what === source ? "" : source;
      return this.row(part, sizeText(bytes), `${((100 * bytes) / total).toFixed(1)} %`, `${this.words.categories[category] ?? category}: ${what}${count > 1 ? ` × ${count}` : ""}`, where);
    });
    if (rest) rows.push(this.row("slack", sizeText(rest), `${((100 * rest) / total).toFixed(1)} %`, say.others, ""));
    const heading = node("p", { class: "alive-title" }, node("b", {}, this.cursor === this.model.data.peak.event ? say.alive_at_peak : say.alive_there), ` ${this.moment(this.cursor)}`);
    this.alive.replaceChildren(heading, node("table", {}, node("tbody", {}, ...rows)));
    if (rest && this.shownRows === ROWS) {
      const more = node("button", { type: "button" }, say.show_all);
      more.addEventListener("click", () => {
        this.shownRows = 400;
        this.listAlive();
      });
      this.alive.append(more);
    }
  }

  /** @param {string} part @param {string} size @param {string} share @param {string} what @param {string} where */
  row(part, size, share, what, where) {
    const text = node("td", {}, what);
    if (where) text.append(node("small", {}, where));
    return node("tr", { class: `edge-${part}` }, node("td", { class: "number" }, size), node("td", { class: "number" }, share), text);
  }

  // ---- moving around

  /** @param {number} from @param {number} to */
  range(from, to) {
    const width = Math.max(8, Math.min(to - from, this.model.count));
    this.from = Math.round(Math.max(0, Math.min(from, this.model.count - width)));
    this.to = Math.min(this.model.count, Math.round(this.from + width));
    this.ask();
  }

  /** @param {number} factor @param {number} around */
  zoom(factor, around) {
    const inside = around >= this.from && around < this.to ? around : (this.from + this.to) / 2;
    this.range(inside - (inside - this.from) * factor, inside + (this.to - inside) * factor);
  }

  /** @param {number} event */
  pin(event) {
    this.cursor = Math.max(0, Math.min(this.model.count - 1, event));
    this.shownRows = ROWS;
    this.listAlive();
    this.ask();
  }

  listen() {
    const canvas = this.canvas;
    /** @type {number | null} */
    let pressed = null;
    canvas.addEventListener("pointermove", (event) => {
      this.hover = this.eventAt(event.offsetX);
      this.band = pressed === null || Math.abs(event.offsetX - pressed) < 5 ? null : [pressed, event.offsetX];
      this.ask();
    });
    canvas.addEventListener("pointerleave", () => {
      this.hover = undefined;
      this.tip.hidden = true;
      this.ask();
    });
    canvas.addEventListener("pointerdown", (event) => (pressed = event.pointerType === "touch" ? null : event.offsetX));
    canvas.addEventListener("pointerup", (event) => {
      if (this.band) {
        const [one, other] = this.band.map((x) => this.eventAt(x));
        this.range(Math.min(one, other), Math.max(one, other) + 1);
      } else this.pin(this.nearby(event.offsetX));
      pressed = this.band = null;
    });
    canvas.addEventListener("dblclick", () => this.range(0, this.model.count));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // else the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, this.eventAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const step = Math.max(1, Math.round((this.to - this.from) / 100));
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowRight: () => this.pin(this.cursor + step), ArrowLeft: () => this.pin(this.cursor - step),
      PageDown: () => this.range(this.from + 30 * step, this.to + 30 * step), PageUp: () => this.range(this.from - 30 * step, this.to - 30 * step),
      "+": () => this.zoom(0.5, this.cursor), "-": () => this.zoom(2, this.cursor), "0": () => this.range(0, this.model.count),
      Home: () => this.pin(0), End: () => this.pin(this.model.count - 1), p: () => this.toPeak(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** @param {number} x */
  eventAt(x) {
    const share = (x - LEFT) / Math.max(1, this.canvas.clientWidth - LEFT - RIGHT);
    return Math.max(0, Math.min(this.model.count - 1, Math.floor(this.from + share * (this.to - this.from))));
  }

  /** The sampled moment that is drawn there. @param {number} x */
  nearby(x) {
    const samples = this.samples;
    if (!samples) return this.eventAt(x);
    const share = (x - LEFT) / Math.max(1, this.canvas.clientWidth - LEFT - RIGHT);
    return samples.at[Math.max(0, Math.min(samples.count - 1, Math.floor(share * samples.count)))];
  }

  // ---- the picture

  /** Draws once, before the next picture of the screen. */
  ask() {
    this.drawn ||= requestAnimationFrame(() => {
      this.drawn = 0;
      this.draw();
    });
  }

  draw() {
    const canvas = this.canvas, context = canvas.getContext("2d");
    const width = canvas.clientWidth;
    if (!context || width < LEFT + RIGHT + 10) return;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(HEIGHT * scale);
    context.scale(scale, scale);
    const styles = getComputedStyle(canvas);
    /** @param {string} name */
    const colour = (name) => styles.getPropertyValue(`--${name}`).trim() || "#888";
    const inner = width - LEFT - RIGHT;
    this.samples = this.model.sample(this.from, this.to, inner);
    context.font = `12px ${styles.fontFamily}`;
    this.drawGrid(context, width, colour);
    this.drawLayers(context, inner, colour);
    this.drawLine(context, inner, colour("ink"));
    this.drawRoom(context, width, colour);
    this.drawPhases(context, width, colour);
    this.drawMarks(context, width, colour);
    canvas.setAttribute("aria-valuenow", String(this.cursor + 1));
    canvas.setAttribute("aria-valuetext", this.moment(this.cursor));
    this.showTip();
  }

  /** @param {number} bytes */
  y(bytes) {
    return HEIGHT - BELOW - (HEIGHT - ABOVE - BELOW) * (bytes / this.top);
  }

  /** @param {number} event @param {number} width */
  x(event, width) {
    return LEFT + ((width - LEFT - RIGHT) * (event - this.from)) / Math.max(1, this.to - this.from);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {(name: string) => string} colour */
  drawGrid(context, width, colour) {
    const unit = this.top >= GiB / 2 ? GiB : MiB, step = unit * niceStep(this.top / unit / 5);
    context.strokeStyle = colour("line");
    context.fillStyle = colour("soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let bytes = 0; bytes <= this.top; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      line(context, LEFT, y, width - RIGHT, y);
      context.fillText(`${Number((bytes / unit).toFixed(2))} ${unit === GiB ? "GiB" : "MiB"}`, LEFT - 6, y);
    }
    context.textBaseline = "alphabetic";
    const count = Math.max(2, Math.floor(width / 160));
    for (let tick = 0; tick <= count; tick += 1) {
      const event = Math.round(this.from + ((this.to - this.from) * tick) / count);
      context.textAlign = tick === 0 ? "left" : tick === count ? "right" : "center";
      context.fillText(Math.max(1, event).toLocaleString("en"), this.x(event, width), HEIGHT - 6);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} inner @param {(name: string) => string} colour */
  drawLayers(context, inner, colour) {
    const samples = this.samples;
    if (!samples) return;
    const layers = this.model.layers, width = layers.length, step = inner / samples.count;
    const below = new Float64Array(samples.count), above = new Float64Array(samples.count);
    layers.forEach((layer, place) => {
      for (let column = 0; column < samples.count; column += 1) above[column] = below[column] + samples.layers[column * width + place];
      context.fillStyle = colour(layer.part);
      context.beginPath();
      context.moveTo(LEFT, this.y(below[0]));
      for (let column = 0; column < samples.count; column += 1) {
        const y = this.y(above[column]);
        context.lineTo(LEFT + column * step, y);
        context.lineTo(LEFT + (column + 1) * step, y);
      }
      for (let column = samples.count - 1; column >= 0; column -= 1) {
        const y = this.y(below[column]);
        context.lineTo(LEFT + (column + 1) * step, y);
        context.lineTo(LEFT + column * step, y);
      }
      context.fill();
      below.set(above);
    });
  }

  /** What torch has reserved. @param {CanvasRenderingContext2D} context @param {number} inner @param {string} ink */
  drawLine(context, inner, ink) {
    const samples = this.samples;
    if (!samples) return;
    const step = inner / samples.count;
    context.strokeStyle = ink;
    context.setLineDash([4, 3]);
    context.beginPath();
    for (let column = 0; column < samples.count; column += 1) {
      const y = this.y(samples.reserved[column]);
      context.lineTo(LEFT + column * step, y);
      context.lineTo(LEFT + (column + 1) * step, y);
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** The card's room, where it is near. @param {CanvasRenderingContext2D} context @param {number} width @param {(name: string) => string} colour */
  drawRoom(context, width, colour) {
    const room = this.model.room();
    if (room === null || room > this.top) return;
    const y = Math.round(this.y(room)) + 0.5;
    context.strokeStyle = colour("bad");
    context.lineWidth = 2;
    line(context, LEFT, y, width - RIGHT, y);
    context.lineWidth = 1;
    outlined(context, `${this.words.say.room} ${sizeText(room)}`, LEFT + 6, y - 5, "left", colour("paper"), colour("bad"));
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {(name: string) => string} colour */
  drawPhases(context, width, colour) {
    const { phases } = this.model.data;
    context.textAlign = "left";
    phases.forEach(([from, phase], place) => {
      const end = phases[place + 1]?.[0] ?? this.model.count;
      if (end <= this.from || from >= this.to) return;
      const left = Math.max(LEFT, this.x(from, width)), right = Math.min(width - RIGHT, this.x(end, width));
      context.fillStyle = colour("panel");
      context.fillRect(left, 0, Math.max(0, right - left - 1), 18);
      const text = this.words.phases[phase] ?? phase;
      context.fillStyle = colour("ink");
      if (context.measureText(text).width < right - left - 8) context.fillText(text, left + 4, 13);
      if (from > this.from) {
        context.strokeStyle = colour("line");
        line(context, Math.round(left) + 0.5, 18, Math.round(left) + 0.5, HEIGHT - BELOW);
      }
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {(name: string) => string} colour */
  drawMarks(context, width, colour) {
    const { peak } = this.model.data, say = this.words.say;
    if (this.cursor >= this.from && this.cursor < this.to) {
      context.strokeStyle = colour("ink");
      const x = this.x(this.cursor + 0.5, width);
      line(context, x, 18, x, HEIGHT - BELOW);
    }
    if (peak.event >= this.from && peak.event < this.to) {
      const x = this.x(peak.event + 0.5, width), y = this.y(peak.bytes);
      context.fillStyle = colour("ink");
      context.beginPath();
      context.moveTo(x, y - 1);
      context.lineTo(x - 5, y - 9);
      context.lineTo(x + 5, y - 9);
      context.fill();
      const text = `${say.peak} ${sizeText(peak.bytes)}`;
      const half = context.measureText(text).width / 2;
      const at = Math.max(LEFT + half + 2, Math.min(width - RIGHT - half - 2, x));
      outlined(context, text, at, Math.max(31, y - 12), "center", colour("paper"), colour("ink"));
    }
    if (this.hover !== undefined) {
      context.strokeStyle = colour("soft");
      const x = this.x(this.hover + 0.5, width);
      line(context, x, 18, x, HEIGHT - BELOW);
    }
    if (this.band) {
      context.fillStyle = colour("accent");
      context.globalAlpha = 0.25;
      context.fillRect(Math.min(...this.band), 18, Math.abs(this.band[1] - this.band[0]), HEIGHT - BELOW - 18);
      context.globalAlpha = 1;
    }
  }

  showTip() {
    const samples = this.samples;
    if (this.hover === undefined || !samples) return;
    const share = (this.hover - this.from) / Math.max(1, this.to - this.from);
    const column = Math.max(0, Math.min(samples.count - 1, Math.floor(share * samples.count)));
    const width = this.model.layers.length;
    const parts = this.model.layers.map((layer, place) => ({ layer, bytes: samples.layers[column * width + place] }))
      .filter(({ bytes }) => bytes >= MiB / 10).sort((one, other) => other.bytes - one.bytes).slice(0, 8);
    this.tip.replaceChildren(node("b", {}, this.moment(samples.at[column])), ...parts.map(({ layer, bytes }) =>
      node("div", { class: `edge-${layer.part}` }, node("span", { class: "number" }, sizeText(bytes)), ` ${this.layerName(layer)}`)));
    this.tip.hidden = false;
    this.tip.classList.toggle("left", share > 0.5);
  }
}

/** @param {number} rough */
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10);
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} right @param {number} bottom */
function line(context, x, y, right, bottom) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(right, bottom);
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y @param {CanvasTextAlign} align @param {string} paper @param {string} ink */
function outlined(context, text, x, y, align, paper, ink) {
  const width = context.measureText(text).width + 4;
  context.textAlign = align;
  context.fillStyle = paper;
  context.globalAlpha = 0.85;
  context.fillRect(align === "center" ? x - width / 2 : x - 2, y - 11, width, 15);
  context.globalAlpha = 1;
  context.fillStyle = ink;
  context.fillText(text, x, y);
}

/** In a report: every timeline whose data the document holds. */
export function showAll() {
  const words = JSON.parse(document.getElementById("timeline-words")?.textContent ?? "{}");
  const hosts = [...document.querySelectorAll(".timeline[data-of]")];
  const datas = hosts.map((host) => JSON.parse(document.getElementById(host.getAttribute("data-of") ?? "")?.textContent ?? "null"));
  const top = Math.max(...datas.map((data) => new Model(data, words.order).top()));
  hosts.forEach((host, place) => new TimelineChart(/** @type {HTMLElement} */ (host), datas[place], words, top));
}
