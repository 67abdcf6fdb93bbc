/**
 * How fast the page answers a person: node benchmarks/bench_page.mjs ADDRESS [ROUNDS], for `vramcast serve` or a folder of
 * `make site` behind any static host. Needs Chromium (CHROMIUM names it) and page/node_modules.
 *
 * interaction to next paint: of every key and click, as Chromium's event timing tells it (its 98th percentile)
 * to the answer: from the key to the new verdict's paint, for one card, the job changed each time
 */
import { createRequire } from "node:module";

const [, , address, rounds = "30"] = process.argv;
const require = createRequire(new URL("../page/node_modules/", import.meta.url));
const { chromium } = require("playwright-core");
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"] });
const page = await (await browser.newContext({ viewport: { width: 1280, height: 900 } })).newPage();
const settled = () => page.waitForFunction(() => {
  const result = document.querySelector("#result");
  return document.querySelector("#part-verdict .verdict") && !result.hasAttribute("aria-busy") && result.dataset.of === location.hash;
});
const began = Date.now();
await page.goto(`${address}#model=qwen3-8b&gpu=rtx4090&tuning=lora&seq=2048`);
await settled();
const first = Date.now() - began;
await page.waitForTimeout(3000); // changes and growth are computed meanwhile
await page.evaluate(() => {
  globalThis.seen = [];
  new PerformanceObserver((list) => globalThis.seen.push(...list.getEntries().filter((each) => each.interactionId))).observe({ type: "event", durationThreshold: 16 });
  // From a key to the paint of its answer.
  globalThis.answers = [];
  let at = 0;
  addEventListener("keydown", () => (at = performance.now()), true);
  new MutationObserver(() => at && requestAnimationFrame(() => setTimeout(() => {
    if (at) globalThis.answers.push(performance.now() - at);
    at = 0;
  }))).observe(document.querySelector("#part-verdict"), { childList: true });
});
await page.focus("input[type=range][aria-label]");
for (let round = 0; round < Number(rounds); round += 1) {
  await page.keyboard.press(round % 6 < 3 ? "ArrowRight" : "ArrowLeft");
  await page.waitForTimeout(30);
  await settled();
  await page.waitForTimeout(round % 3 ? 100 : 900);
}
for (const tab of ["timeline", "compare", "diagnose", "explore"]) {
  await page.click(`#tab-${tab}`);
  await page.waitForTimeout(700);
}
const { paints, answers } = await page.evaluate(() => ({ paints: globalThis.seen.map((each) => each.duration), answers: globalThis.answers }));
const at = (values, share) => [...values].sort((one, other) => one - other)[Math.min(values.length - 1, Math.floor(share * values.length))]?.toFixed(0) ?? "below 16";
console.log(`first answer after ${first} ms`);
console.log(`interaction to next paint: p98 ${at(paints, 0.98)} ms of ${paints.length} interactions above 16 ms`);
console.log(`to the answer: median ${at(answers, 0.5)} ms, p95 ${at(answers, 0.95)} ms of ${answers.length}`);
await browser.close();
