/**
 * One interface, two engines: `ask(question, request)` gives the same JSON from a worker that runs Python in the
 * browser, or from the server that served this page. Of equal slots only the newest question is answered. The question
 * `file` sends a name and bytes, and is answered with the name under which further questions find them.
 * A server stops computing what the signal has aborted; a worker has answered by then.
 * @typedef {(question: string, request: object, signal?: AbortSignal) => Promise<any>} Ask
 */

/** What a person can mend, in one line. */
export class Refused extends Error {}

/** A newer question took this one's place. */
export class Overtaken extends Error {}

/** @returns {Promise<{ask: Ask, name: string}>} */
export async function startEngine(/** @type {(text: string) => void} */ tell) {
  const settings = await (await fetch("engine.json")).json();
  if (settings.engine === "server") return { ask: askServer, name: "server" };
  return { ask: await startWorker(tell), name: "browser" };
}

/** @type {Ask} */
async function askServer(question, request, signal) {
  const file = question === "file" ? /** @type {{name: string, bytes: ArrayBuffer}} */ (request) : null;
  const answer = await fetch(file ? `api/file?name=${encodeURIComponent(file.name)}` : `api/${question}`, {
    method: "POST",
    headers: { "Content-Type": file ? "application/octet-stream" : "application/json" },
    body: file ? file.bytes : JSON.stringify(request),
    signal,
  });
  const data = await answer.json();
  if (!answer.ok) throw new Refused(data.error ?? `HTTP ${answer.status}`);
  return data;
}

/** @returns {Promise<Ask>} */
function startWorker(/** @type {(text: string) => void} */ tell) {
  const worker = new Worker("worker.js", { type: "module" });
  /** @type {Map<number, {resolve: (data: any) => void, reject: (error: Error) => void}>} */
  const waiting = new Map();
  let number = 0;
  /** @type {Ask} */
  const ask = (question, request) =>
    new Promise((resolve, reject) => {
      number += 1;
      waiting.set(number, { resolve, reject });
      const file = question === "file" ? /** @type {{name: string, bytes: ArrayBuffer}} */ (request) : null;
      if (file) worker.postMessage({ number, question, name: file.name, bytes: file.bytes }, [file.bytes]);
      else worker.postMessage({ number, question, request: JSON.stringify(request) });
    });
  return new Promise((resolve, reject) => {
    worker.onerror = (event) => reject(new Error(event.message || "the worker did not start"));
    worker.onmessage = ({ data }) => {
      if (data.kind === "progress") tell(data.text);
      else if (data.kind === "ready") resolve(ask);
      else if (data.kind === "broken") reject(new Error(data.text));
      else {
        const asked = waiting.get(data.number);
        waiting.delete(data.number);
        if (data.kind === "ok") asked?.resolve(JSON.parse(data.text));
        else asked?.reject(new Refused(data.text));
      }
    };
  });
}

/**
 * Few questions at a time, newest first: while an engine is at work, a newer question of the same slot replaces the one
 * that waits, and slots are served in the order of their importance. What may come later never takes the last place, so
 * that a server answers a new job at once.
 */
export class Line {
  /** @param {Ask} ask @param {string[]} slots the most important first @param {string[]} [later] slots that leave one place free @param {number} [places] */
  constructor(ask, slots, later = [], places = 1) {
    this.send = ask;
    this.slots = slots;
    this.later = later;
    this.places = places;
    this.busy = 0;
    /** @type {Map<string, {question: string, request: object, resolve: (data: any) => void, reject: (error: Error) => void}>} */
    this.waiting = new Map();
    /** What the engine is at work on, by slot. @type {Map<string, AbortController>} */
    this.running = new Map();
  }

  /** @param {string} slot @param {string} question @param {object} request @returns {Promise<any>} */
  ask(slot, question, request) {
    this.waiting.get(slot)?.reject(new Overtaken());
    const answer = new Promise((resolve, reject) => {
      this.waiting.set(slot, { question, request, resolve, reject });
    });
    void this.next();
    return answer;
  }

  /** A long question, which takes nobody's place: at once, until it is forgotten. @param {string} slot @param {string} question @param {object} request @returns {Promise<any>} */
  async alone(slot, question, request) {
    this.forget([slot]);
    return this.sent(slot, question, request);
  }

  /** Drops what waits or is worked on in slots that a newer job has made pointless. @param {string[]} slots */
  forget(slots) {
    for (const slot of slots) {
      this.running.get(slot)?.abort();
      this.waiting.get(slot)?.reject(new Overtaken());
      this.waiting.delete(slot);
    }
  }

  async next() {
    const slot = this.slots.find((name) => this.waiting.has(name));
    if (slot === undefined) return;
    if (this.busy >= (this.later.includes(slot) ? Math.max(1, this.places - 1) : this.places)) return;
    const asked = this.waiting.get(slot);
    if (asked === undefined) return;
    this.waiting.delete(slot);
    this.busy += 1;
    try {
      asked.resolve(await this.sent(slot, asked.question, asked.request));
    } catch (error) {
      asked.reject(error instanceof Error ? error : new Error(String(error)));
    } finally {
      this.busy -= 1;
      void this.next();
    }
  }

  /** @param {string} slot @param {string} question @param {object} request @returns {Promise<any>} */
  async sent(slot, question, request) {
    const stop = new AbortController();
    this.running.set(slot, stop);
    try {
      return await this.send(question, request, stop.signal);
    } catch (error) {
      throw stop.signal.aborted ? new Overtaken() : error;
    } finally {
      if (this.running.get(slot) === stop) this.running.delete(slot);
    }
  }
}
