/** Dropped files: a model's config, a job or a framework's configuration, a log, a trace, a memory snapshot. */

import { at, make } from "./dom.js";
import { setOrigins } from "./state.js";
import { say } from "./words.js";

const MOST_TEXT_BYTES = 1 << 20; // of a configuration; what is longer is a log
const MOST_LOG_BYTES = 8 << 20;
const MOST_RECORDING_BYTES = 256 << 20;
const CONFIGURATION = /\.(ya?ml|json|sh|bash|py|ipynb)$/i;

/**
 * @typedef {import("./state.js").Job} Job
 * @typedef {{
 *   ask: (question: string, asked: object) => Promise<any>, takeModel: (name: string, text: string) => void, takeJob: (job: Job) => void,
 *   takeRecording: (name: string, file: string, isSnapshot: boolean) => Promise<void>, showLog: (text: string) => void, problem: (error: unknown) => void,
 * }} Acts
 */

export class Drops {
  /** @param {Acts} acts */
  constructor(acts) {
    this.acts = acts;
  }

  /** Configurations that come together are read together: they name each other. @param {FileList | File[] | null} files */
  async take(files) {
    const all = [...(files ?? [])];
    const configs = all.filter((file) => CONFIGURATION.test(file.name) && file.size <= MOST_TEXT_BYTES);
    const together = configs.length > 1 ? configs : [];
    try {
      if (together.length) await this.takeTogether(together);
    } catch (error) {
      this.acts.problem(error);
    }
    for (const file of all) {
      if (together.includes(file)) continue;
      try {
        await this.takeOne(file);
      } catch (error) {
        this.acts.problem(error);
      }
    }
  }

  /** @param {File} file */
  async takeOne(file) {
    const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
    const isSnapshot = first === 0x80, isTrace = first === 0x1f && second === 0x8b;
    if (file.size > (isSnapshot || isTrace ? MOST_RECORDING_BYTES : MOST_LOG_BYTES)) throw new Error(say("too_large", { name: file.name }));
    if (isSnapshot || isTrace) return this.takeRecording(file, isSnapshot);
    await this.takeText(file.name, await file.text());
  }

  /** @param {File} file @param {boolean} isSnapshot */
  async takeRecording(file, isSnapshot) {
    at("status").textContent = say("reading", { name: file.name });
    try {
      const kept = await this.acts.ask("file", { name: file.name, bytes: await file.arrayBuffer() });
      await this.acts.takeRecording(file.name, kept.file, isSnapshot);
    } finally {
      at("status").textContent = "";
    }
  }

  /** Files of one training: its YAML, DeepSpeed's JSON, a launch script. @param {File[]} files */
  async takeTogether([first, ...others]) {
    const more = Object.fromEntries(await Promise.all(others.map(async (file) => [file.name, await file.text()])));
    const read = await this.acts.ask("read", { name: first.name, text: await first.text(), more });
    this.takeJob([first, ...others].map(({ name }) => name).join(", "), read);
  }

  /** @param {string} name @param {string} text */
  async takeText(name, text) {
    if (text.length > MOST_TEXT_BYTES) return this.acts.showLog(text);
    const read = await this.acts.ask("read", { name, text });
    if (read.kind === "log") return this.acts.showLog(text);
    if (read.kind === "job") return this.takeJob(name, read);
    this.acts.takeModel(name, text);
    at("taken").textContent = say("took", { name });
  }

  /** What files say takes the place of what was there; without a model it is added. @param {string} name @param {{job: Job, origins?: Record<string, string>, notes?: string[]}} read */
  takeJob(name, { job, origins, notes }) {
    setOrigins(job, origins ?? {});
    this.acts.takeJob(job);
    const list = make("ul", { class: "plain" }, ...(notes ?? []).map((note) => make("li", {}, note)));
    at("taken").replaceChildren(say("took", { name }), list);
  }
}
