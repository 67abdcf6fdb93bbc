/**
 * The page in a real browser: node browser.mjs ADDRESS KIND MODULES. Prints one JSON line: what failed, and the figures
 * of the asked jobs (read from standard input) as the page got them. With PAGE_TIMES=1 standard error tells when each section began.
 */
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const [, , address, kind, modules] = process.argv;
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const { jobs, config, log, recordings, snapshots } = JSON.parse(readFileSync(0, "utf8"));

const failures = [];
const expect = (holds, text) => holds || failures.push(text);
const started = Date.now();
const section = (name) => process.env.PAGE_TIMES && console.error(`${((Date.now() - started) / 1000).toFixed(1)} s ${name}`);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, locale: "en-US", bypassCSP: false });
const page = await context.newPage();
page.setDefaultTimeout(60000);
const said = [];
page.on("console", (message) => ["error", "warning"].includes(message.type()) && said.push(message.text()));
page.on("pageerror", (error) => said.push(String(error)));
const outside = [];
page.on("request", (asked) => asked.url().startsWith(address) || asked.url().startsWith("data:") || outside.push(asked.url()));

/** Until the answer to the job in the address stands, however slow the machine is. */
const settled = () => page.waitForFunction(() => {
  const result = document.querySelector("#result");
  return document.querySelector("#part-verdict .verdict") && !result.hasAttribute("aria-busy") && result.dataset.of === location.hash;
});
const verdict = () => page.locator("#part-verdict .verdict").innerText();
const hash = () => page.evaluate(() => decodeURIComponent(location.hash));
/** After a change of the job: until its own answer stands. */
const after = async (act) => {
  await act();
  await page.waitForTimeout(30);
  await settled();
};

const began = Date.now();
await page.goto(address);
await settled();
const firstAnswer = Date.now() - began;
expect((await verdict()).includes("GiB"), "the first visit shows no worked example");

// ---- controls
section("controls");
await after(() => page.fill("#control-model", "phi-3-mini").then(() => page.press("#control-model", "Enter")));
expect((await hash()).includes("model=phi-3-mini"), "the model is not in the address");
await after(() => page.fill("#control-gpu", "a100-80gb").then(() => page.press("#control-gpu", "Enter")));
for (const method of ["full", "qlora", "lora"]) {
  await after(() => page.click(`[data-choice=${method}]`));
  expect((await page.getAttribute(`[data-choice=${method}]`, "aria-pressed")) === "true", `method ${method} is not shown as chosen`);
}
for (const task of ["dpo", "grpo", "ppo", "distill", "classify", "sft"]) {
  await after(() => page.selectOption("#control-task", task));
  expect((await hash()).includes(`task=${task}`), `task ${task} is not in the address`);
  expect(await page.isHidden("#problem"), `task ${task}: ${await page.textContent("#problem")}`);
}
const small = await verdict();
await after(() => page.fill("#control-batch", "4"));
expect(small !== (await verdict()), "batch changes nothing");
expect((await page.textContent("#difference")).includes("+"), "no difference is shown");
await after(() => page.focus("input[type=range][aria-label]").then(() => page.keyboard.press("ArrowRight")));
expect((await hash()).includes("batch=8"), `the slider does not move the batch: ${await hash()}`);
for (const [name, value] of [["framework", "trl"], ["precision", "bf16-true"], ["optimizer", "adamw-8bit"], ["attention", "eager"], ["loss", "full"]]) {
  await after(() => page.selectOption(`#control-${name}`, value));
  expect((await hash()).includes(`${name}=${value}`), `${name} is not in the address`);
}
await after(() => page.fill("#control-gpus", "8"));
await after(() => page.selectOption("#control-strategy", "fsdp2"));
expect((await hash()).includes("strategy=fsdp2"), "strategy is not in the address");
await page.click(".more summary");
await page.fill("#search-options", "workers");
expect((await page.locator(".more .control:visible").count()) >= 1, "the search finds no option");
await after(() => page.fill("#control-workers", "4"));
expect((await hash()).includes("workers=4"), "an option of the drawer is not in the address");

const trained = page.url();

// ---- generating, scoring, serving, rollouts
section("generating, scoring, serving, rollouts");
await after(() => page.click("[data-choice=infer]"));
expect((await hash()).includes("task=generate") && !(await hash()).includes("optimizer"), `generating keeps what it cannot use: ${await hash()}`);
await after(() => page.fill("#control-prompt", "3000"));
const phaseNames = () => page.locator("#part-phases .phase .name").allInnerTexts();
expect((await phaseNames()).join() === "load,prefill,decode", `phases of generating: ${await phaseNames()}`);
for (const task of ["score", "encode"]) {
  await after(() => page.click(`[data-choice=${task}]`));
  expect(await page.isHidden("#problem"), `task ${task}: ${await page.textContent("#problem")}`);
}
await after(() => page.click("[data-choice=serve]"));
for (const engine of ["sglang", "tgi", "llama.cpp", "vllm"]) {
  await after(() => page.click(`[data-choice="${engine}"]`));
  expect(await page.isHidden("#problem"), `engine ${engine}: ${await page.textContent("#problem")}`);
  expect((await page.textContent("#part-served")).length > 40, `${engine}: nothing about its cache`);
}
await after(() => page.fill("#control-serving-max-model-len", "8192"));
expect((await page.textContent("#part-served")).includes("8,192"), "the longest request is not told");
await page.waitForFunction(() => document.querySelector("#growth table"));
await page.locator("#changes li button").first().waitFor();
const tokens = await page.textContent("#part-served");
await after(() => page.locator("#changes li button").first().click());
expect((await page.textContent("#part-served")) !== tokens, "a change of the engine's flags changes nothing");
await after(() => page.click("[data-choice=train]"));
expect((await hash()).includes("workers=4"), `training does not come back as it was: ${await hash()}`);
await page.goto(`${address}#model=gpt2&gpu=rtx4090&task=ppo&seq=512`);
await settled();
await after(() => page.selectOption("#control-rollout-engine", "vllm"));
expect((await phaseNames()).includes("rollout"), `no rollout among the phases: ${await phaseNames()}`);

// ---- a model that no formula describes
section("a model that no formula describes");
await page.goto(`${address}#model=modernbert-base&gpu=rtx4090&seq=128`);
if (kind === "served") {
  await page.waitForFunction(() => document.querySelector("#status").textContent.includes("virtual GPU"));
  await page.fill("#control-model", "gpt2").then(() => page.press("#control-model", "Enter"));
  await settled();
  expect(await page.isHidden("#problem"), `the next job does not end a run: ${await page.textContent("#problem")}`);
  await page.goBack();
  await settled();
  expect((await page.textContent("#part-notes")).includes("virtual GPU"), "a run on the virtual GPU does not say so");
  expect(await page.isHidden("#missing"), "a whole bill is called incomplete");
} else {
  await settled();
  expect((await page.textContent("#missing code")).includes("vramcast estimate modernbert-base"), "no command for a model that no formula describes");
}

// ---- a link, the back button
section("a link, the back button");
await page.goto(trained);
await settled();
await after(() => page.fill("#control-workers", "5"));
const link = page.url();
const there = await verdict();
await after(() => page.goBack());
expect(!(await hash()).includes("workers=5"), "back does not take the last change back");
await after(() => page.goForward());
const second = await context.newPage();
await second.goto(link);
await second.waitForFunction(() => document.querySelector("#part-verdict .verdict"));
expect((await second.locator("#part-verdict .verdict").innerText()) === there, "a shared link shows something else");
await second.close();

// ---- changes, undo, growth, parts
section("changes, undo, growth, parts");
await page.goto(`${address}#model=llama-3.1-8b&gpu=rtx4090&seq=2048`);
await settled();
const before = await verdict();
await page.locator("#changes li button").first().waitFor();
await after(() => page.locator("#changes li button").first().click());
await page.waitForFunction((old) => document.querySelector("#part-verdict .verdict")?.innerText !== old, before);
await after(() => page.click("#undo"));
await page.waitForFunction((old) => document.querySelector("#part-verdict .verdict")?.innerText === old, before);
await page.click("#growth-batch");
await page.waitForFunction(() => document.querySelector("#growth figcaption")?.textContent.includes("micro-batch"));
await page.hover("#part-bar rect[data-part=weights]");
const about = await page.textContent("#tip .about");
expect(about.includes("weights") && about.includes("alive in"), `hovering a part does not tell its lines and phases: ${about}`);
const below = () => page.locator("#changes-title").boundingBox().then(({ y }) => y);
const still = await below();
await page.mouse.move(2, 2);
expect((await below()) === still, "what is below the bar moves with the pointer");
await page.hover("#part-bar rect[data-part=optimizer]");
await page.waitForFunction(() => document.querySelector("#tip")?.textContent.includes("shrinks with"));
await page.mouse.move(2, 2);
await page.locator("#part-bar .legend button").first().focus();
await page.keyboard.press("Enter");
expect((await page.locator("#part-lines details[open]").count()) > 0, "a part chosen by keyboard opens no lines");
await page.keyboard.press("Escape");
expect((await page.locator("#part-lines details[open]").count()) === 0, "Escape does not let a part go");

// ---- copies
section("copies");
await context.grantPermissions(["clipboard-read", "clipboard-write"]);
for (const [kind_, text] of [["command", "vramcast estimate llama-3.1-8b"], ["yaml", "model: llama-3.1-8b"], ["python", "vramcast.estimate("], ["markdown", "| GiB |"], ["link", "#model="]]) {
  await page.click(`#copy-${kind_}`);
  await page.waitForFunction(() => document.querySelector("#copied").textContent !== "");
  expect((await page.inputValue("#copy-text")).includes(text), `copy as ${kind_}`);
}

// ---- comparison and cards
section("comparison and cards");
await page.click("#pin");
await after(() => page.click("[data-choice=qlora]"));
expect((await page.textContent("#part-bar figure.beside")).includes("pinned"), "the pinned job is not in Explore's pictures");
expect((await page.locator("#part-phases line.beside").count()) > 0, "the pinned job is not in the phases");
await page.click("#tab-compare");
await page.locator("#both table").waitFor();
expect((await page.locator("#both svg.bar").count()) === 2, "two jobs are not shown side by side");
await page.click("#ask-cards");
await page.locator("#cards-chart .phase").first().waitFor();
await page.click("#ask-front");
await page.waitForFunction(() => document.querySelectorAll("#front .dot").length > 4);
expect((await page.textContent("#front-said")).startsWith(kind === "served" ? "found by vramcast plan" : ""), `who found the front: ${await page.textContent("#front-said")}`);
const dot = page.locator("#front .dot[data-point='2']");
await dot.focus();
const offered = await page.locator("#front-point li").allInnerTexts();
expect(offered.length >= 1, `a combination does not list its changes: ${offered}`);
const beforeFront = await hash();
await after(() => page.click("#front-apply"));
expect((await hash()) !== beforeFront, "a combination does not apply itself");
await after(() => page.click("#undo"));

// ---- files and logs
section("files and logs");
const drop = (name, text) => page.evaluate(([name_, text_]) => {
  const data = new DataTransfer();
  data.items.add(new File([text_], name_));
  dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}, [name, text]);
await drop("my-model.json", config);
await page.waitForFunction(() => location.hash.includes("my-model.json"));
await settled();
expect(await page.isHidden("#problem"), `a dropped config: ${await page.textContent("#problem")}`);
await drop("job.yaml", "model: gpt2\nseq: 512\ngpu: rtx3090\n");
await page.waitForFunction(() => location.hash.includes("model=gpt2"));
await settled();
await drop("train.log", log);
await page.waitForFunction(() => document.querySelector("#diagnosis").textContent.length > 100);
expect((await page.textContent("#diagnosis")).includes("ran out of GPU memory"), "a dropped log is not diagnosed");

// ---- configurations that come together
section("configurations that come together");
const dropAll = (files) => page.evaluate((all) => {
  const data = new DataTransfer();
  for (const [name, base64] of all) data.items.add(new File([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], name));
  dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}, files);
const yaml = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: lora\nlora_rank: 24\ncutoff_len: 1000\nbf16: true\ndeepspeed: ds.json\nsome_lora_thing: 1\n";
await dropAll([["train.yaml", btoa(yaml)], ["ds.json", btoa('{"zero_optimization": {"stage": 2}}')]]);
await page.waitForFunction(() => location.hash.includes("lora-rank=24"));
await settled();
expect((await hash()).includes("strategy=zero2"), `files that come together are not read together: ${await hash()}`);
expect((await page.textContent("#taken")).includes("some_lora_thing"), "what was not counted is not told");
expect((await page.textContent("#controls")).includes("train.yaml:4"), "no control says that its value is from a file");

// ---- memory over time
section("memory over time");
const timeline = async (source) => {
  await page.waitForFunction((wanted) => document.querySelector("#timeline-first").selectedOptions[0]?.textContent === wanted && document.querySelector("#timeline-problem").textContent === "" && document.querySelector("#timelines canvas"), source);
  return page.locator("#timelines .alive-title").first().innerText();
};
await page.click("#tab-timeline");
const ofJob = await timeline("this job");
expect(ofJob.includes("Alive at the peak"), `the peak is not explained: ${ofJob}`);
for (const grouping of ["module", "tensor", "category"]) {
  await page.click(`#timelines [data-grouping=${grouping}]`);
  expect((await page.getAttribute(`#timelines [data-grouping=${grouping}]`, "aria-pressed")) === "true", `not stacked by ${grouping}`);
}
await page.focus("#timelines canvas");
const valueNow = () => page.getAttribute("#timelines canvas", "aria-valuenow").then(Number);
const painted = () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
const peakAt = await valueNow();
await page.keyboard.press("ArrowRight");
await painted();
expect((await valueNow()) > peakAt, "an arrow key does not move the cursor");
expect((await page.locator("#timelines .alive-title").innerText()).includes("Alive there"), "another moment is not explained");
await page.keyboard.press("p");
await painted();
expect((await valueNow()) === peakAt, "p does not lead to the peak");
await page.keyboard.press("0");
const box = await page.locator("#timelines canvas").boundingBox();
await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
await painted();
expect(await page.isVisible("#timelines .tip"), "hovering the timeline tells nothing");
await page.mouse.down();
await page.mouse.move(box.x + box.width * 0.7, box.y + box.height / 2, { steps: 4 });
await page.mouse.up();
await page.click("#timelines .tools button:has-text('all')");
for (const [name, base64, peak] of recordings) {
  await dropAll([[name, base64]]);
  expect((await timeline(name)).includes(peak), `${name}: the peak is not ${peak}: ${await timeline(name)}`);
}
expect((await page.locator("#timelines canvas").count()) === 2, "two recordings are not shown beside each other");
expect((await page.locator("#timelines .totals tr").count()) > 2, "two recordings are not compared");
await page.click("#tab-diagnose");
await dropAll([recordings.find(([name]) => name.endsWith(".pickle"))]);
await page.waitForFunction(() => document.querySelector("#diagnosis").textContent.includes("snapshot"));

// ---- a mistake, both languages, accessibility
section("a mistake, both languages, accessibility");
await page.click("#tab-explore");
await page.fill("#control-model", "no-such-model");
await page.press("#control-model", "Enter");
await page.locator("#problem:not([hidden])").waitFor();
expect((await page.textContent("#problem")).includes("no-such-model"), "a mistake is not named");
await page.fill("#control-model", "qwen3-8").then(() => page.press("#control-model", "Enter"));
await page.waitForFunction(() => document.querySelector("#problem")?.textContent.includes("qwen3-8b"));
await after(() => page.locator("#problem button", { hasText: /^qwen3-8b$/ }).click());
expect((await hash()).includes("model=qwen3-8b"), "a proposed name cannot be chosen");
await after(() => page.fill("#control-model", "gpt2").then(() => page.press("#control-model", "Enter")));
expect(await page.isHidden("#problem"), "a mended mistake stays");
for (const theme of ["light", "dark"]) {
  for (const view of ["explore", "timeline", "compare", "diagnose"]) {
    await page.click(`#tab-${view}`);
    await page.evaluate(axe);
    const found = await page.evaluate(() => globalThis.axe.run());
    const serious = found.violations.filter((each) => ["serious", "critical"].includes(each.impact));
    for (const each of serious) failures.push(`axe, ${view}, ${theme}: ${each.id}: ${each.nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join("; ")}`);
  }
  await page.click("#theme");
}
await page.click("#tab-explore");
await after(() => page.click("#language"));
expect((await page.textContent("#tab-explore")) === "探索", "the page does not speak Chinese");
await page.waitForFunction(() => document.querySelector("#part-verdict").textContent.includes("装得下"));
const findEnglish = () => page.evaluate(() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, 4); // texts
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (node.parentElement?.closest("datalist, option, [hidden], #taken, #copy-text, #diagnosis, #log")) continue; // #taken: read before the switch
    if (/(?:\b[a-z]{2,}\b[ ,]+){4,}[a-z]{2,}\b/.test(node.textContent ?? "")) found.push(node.textContent);
  }
  return found;
});
let english = await findEnglish();
for (let tries = 0; english.length > 0 && tries < 40; tries++) { // pictures follow the verdict
  await page.waitForTimeout(250);
  english = await findEnglish();
}
expect(english.length === 0, `English in the Chinese page: ${english.slice(0, 3).join(" | ")}`);
await page.goto(`${address}#model=gpt2&gpu=rtx4090&seq=512&optimizer=adamw&gpus-per-node=4`);
await page.waitForFunction(() => document.querySelector("#controls")?.textContent.includes("同默认"));
expect((await page.textContent(".control:has(#control-gpus-per-node)")).includes("不起作用"), "a control without effect does not say so");
for (const width of [380, 800, 1600]) {
  await page.setViewportSize({ width, height: 900 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(wide <= 0, `${width} px: the page scrolls sideways by ${wide} px`);
}

// ---- figures, byte for byte
section("figures, byte for byte");
const answers = await page.evaluate(async (asked) => {
  const { startEngine } = await import("./engine.js");
  const engine = await startEngine(() => undefined);
  const found = [];
  for (const job of asked) found.push(await engine.ask("estimate", { job }).catch((error) => ({ error: error.message })));
  return found;
}, jobs);

if (snapshots) await page.screenshot({ path: snapshots, fullPage: true });
const mistakes = said.filter((text) => !text.includes("422"));
expect(mistakes.length === 0, `the console says: ${mistakes.slice(0, 3).join(" | ")}`);
expect(outside.length === 0, `asked for ${outside.slice(0, 3).join(", ")}`);
await browser.close();
console.log(JSON.stringify({ kind, failures, firstAnswer, answers }));
