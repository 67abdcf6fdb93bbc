/**
 * Memory over time, as numbers: totals, layers, samples of a range, and who is alive at a moment. Draws nothing.
 *
 * A timeline's events are numbers of allocations: `3` allocates number 3, `~3` frees it.
 * @typedef {{
 *   name: string, place: string, origin: string, labels: [string, string, string, string, string][], bytes: number[], label: number[],
 *   events: number[], phases: [number, string][], reserved: [number, number][], capacity_bytes: number | null,
 *   context_bytes: number, recorded_events: number, peak: {event: number, bytes: number, phase: string}, is_unlimited: boolean,
 * }} Data the engine's answer; a label is category, module, source, tensor and part (which gives the colour)
 * @typedef {{name: string, part: string}} Layer
 * @typedef {{at: Int32Array, total: Float64Array, reserved: Float64Array, layers: Float64Array, count: number}} Samples
 * @typedef {{label: [string, string, string, string, string], bytes: number, count: number}} Holder
 */

export const GROUPINGS = ["category", "module", "source", "tensor"];
const MOST_LAYERS = 12;
const EVERY = 512; // events between two moments whose sums are kept

/** Numbers that are a part of a dotted name: all layers of a model are one. @param {string} name */
const starred = (name) => name.replace(/(?<![^.])\d+(?![^.])/g, "*");

/** Of `model.layers.17.mlp.up_proj`: all layers are one, and names end one part after the number. @param {string} name */
export function folded(name) {
  const parts = starred(name).split(".");
  const star = parts.findIndex((part) => part.includes("*"));
  return parts.slice(0, star < 0 ? 3 : star + 2).join(".");
}

export class Model {
  /** @param {Data} data @param {string[]} order parts in the order of their colours */
  constructor(data, order) {
    this.data = data;
    this.order = order;
    this.count = data.events.length;
    this.total = new Float64Array(this.count);
    this.born = new Int32Array(data.bytes.length).fill(-1);
    this.died = new Int32Array(data.bytes.length).fill(this.count);
    this.reserved = new Float64Array(this.count);
    let total = 0;
    data.events.forEach((event, index) => {
      if (event >= 0) this.born[event] = index;
      else this.died[~event] = index;
      total += event >= 0 ? data.bytes[event] : -data.bytes[~event];
      this.total[index] = total;
    });
    data.reserved.forEach(([from, bytes], place) => this.reserved.fill(bytes, from, data.reserved[place + 1]?.[0] ?? this.count));
    /** @type {Layer[]} */
    this.layers = [];
    this.grouping = "";
    this.group("category");
  }

  /** Groupings that say something here. */
  groupings() {
    return GROUPINGS.filter((name) => name === "category" || new Set(this.data.labels.map((label) => this.keyOf(label, name))).size > 1);
  }

  /** @param {[string, string, string, string, string]} label @param {string} grouping */
  keyOf(label, grouping) {
    if (grouping === "category") return label[4];
    if (grouping === "source") return label[2];
    return folded(grouping === "module" ? label[1] : label[3]);
  }

  /** Layers by another property: those that have most at the peak, the others as one. @param {string} grouping */
  group(grouping) {
    if (this.grouping === grouping) return;
    this.grouping = grouping;
    const keys = this.data.labels.map((label) => this.keyOf(label, grouping));
    const most = this.mostOf(keys);
    const named = grouping === "category"
      ? this.order.filter((part) => most.has(part))
      : [...most].sort((one, other) => other[1] - one[1]).slice(0, MOST_LAYERS).map(([key]) => key);
    this.layers = named.map((name, place) => ({ name, part: grouping === "category" ? name : `layer-${place}` }));
    const place = new Map(named.map((name, number) => [name, number]));
    if (keys.some((key) => !place.has(key))) this.layers.push({ name: "", part: "slack" });
    this.layerOf = Uint16Array.from(keys, (key) => place.get(key) ?? named.length);
    this.keepSums();
  }

  /** What each key holds at the peak, and a little for all it ever allocated, so that none is forgotten. @param {string[]} keys */
  mostOf(keys) {
    /** @type {Map<string, number>} */
    const most = new Map();
    const peak = this.data.peak.event;
    this.data.bytes.forEach((bytes, index) => {
      const key = keys[this.data.label[index]];
      const alive = this.born[index] <= peak && this.died[index] > peak;
      most.set(key, (most.get(key) ?? 0) + (alive ? bytes : bytes * 1e-6));
    });
    return most;
  }

  /** Sums by layer at every EVERY-th event. */
  keepSums() {
    const width = this.layers.length;
    this.sums = new Float64Array((Math.floor(this.count / EVERY) + 1) * width);
    const now = new Float64Array(width);
    for (let index = 0; index < this.count; index += 1) {
      if (index % EVERY === 0) this.sums.set(now, (index / EVERY) * width);
      this.apply(now, index);
    }
  }

  /** @param {Float64Array} sums @param {number} index */
  apply(sums, index) {
    const event = this.data.events[index];
    const number = event >= 0 ? event : ~event;
    const layer = /** @type {Uint16Array} */ (this.layerOf)[this.data.label[number]];
    sums[layer] += event >= 0 ? this.data.bytes[number] : -this.data.bytes[number];
  }

  /** The fullest moment of each of `columns` equal shares of the events in [from, to). @param {number} from @param {number} to @param {number} columns @returns {Samples} */
  sample(from, to, columns) {
    const count = Math.max(1, Math.min(columns, to - from));
    const width = this.layers.length;
    const found = { at: new Int32Array(count), total: new Float64Array(count), reserved: new Float64Array(count), layers: new Float64Array(count * width), count };
    for (let column = 0; column < count; column += 1) {
      const start = from + Math.floor(((to - from) * column) / count);
      const end = from + Math.floor(((to - from) * (column + 1)) / count);
      let best = start;
      for (let index = start; index < end; index += 1) if (this.total[index] > this.total[best]) best = index;
      found.at[column] = best;
      found.total[column] = this.total[best];
      found.reserved[column] = this.reserved[best];
    }
    this.fillLayers(found, from, width);
    return found;
  }

  /** One walk through the events gives all samples their layers. @param {Samples} found @param {number} from @param {number} width */
  fillLayers(found, from, width) {
    const begin = Math.floor(from / EVERY);
    const sums = /** @type {Float64Array} */ (this.sums).slice(begin * width, (begin + 1) * width);
    let index = begin * EVERY;
    for (let column = 0; column < found.count; column += 1) {
      for (; index <= found.at[column]; index += 1) this.apply(sums, index);
      found.layers.set(sums, column * width);
    }
  }

  /** Who holds memory after an event, largest first; layers of a model together. @param {number} event @returns {Holder[]} */
  holders(event) {
    /** @type {Map<string, Holder>} */
    const found = new Map();
    this.data.bytes.forEach((bytes, index) => {
      if (this.born[index] > event || this.died[index] <= event || this.born[index] < 0) return;
      const [category, module, source, tensor, part] = this.data.labels[this.data.label[index]];
      /** @type {[string, string, string, string, string]} */
      const label = [category, starred(module), source, starred(tensor), part];
      const key = label.join("\n");
      const holder = found.get(key);
      if (holder) {
        holder.bytes += bytes;
        holder.count += 1;
      } else {
        found.set(key, { label, bytes, count: 1 });
      }
    });
    return [...found.values()].sort((one, other) => other.bytes - one.bytes);
  }

  /** @param {number} event */
  phaseAt(event) {
    let found = "";
    for (const [from, phase] of this.data.phases) {
      if (from > event) break;
      found = phase;
    }
    return found;
  }

  /** The highest that is drawn: what is reserved or allocated, and the card's room where that is not far above. */
  top() {
    const most = Math.max(this.data.peak.bytes, ...this.data.reserved.map(([, bytes]) => bytes), 1);
    const room = this.room();
    return room !== null && room < 2.5 * most ? Math.max(most, room) : most;
  }

  /** What the card has for tensors. */
  room() {
    return this.data.capacity_bytes === null ? null : this.data.capacity_bytes - this.data.context_bytes;
  }
}
