/** The page's own words, English and Chinese. What reports say comes from the engine. */

/** @type {Record<string, [string, string]>} */
const WORDS = {
  explore: ["Explore", "探索"],
  timeline: ["Timeline", "时间线"],
  compare: ["Compare", "对比"],
  timeline_of: ["Memory over time of", "显存随时间的变化:"],
  beside: ["beside", "对照"],
  this_job: ["this job", "当前任务"],
  pinned_job: ["pinned job", "已固定的任务"],
  nothing: ["nothing", "无"],
  timeline_how: [
    "Drop a trace (vramcast trace --save) or a memory snapshot of torch's to see it here. Across: allocations and frees in their order, each column its fullest moment; dashed: what torch reserves. Drag to zoom, click for who is alive; keys: arrows, + − 0, p for the peak.",
    "将 trace（vramcast trace --save）或 torch 的显存快照拖入即可查看。横轴: 按顺序的分配与释放，每一列为其中最满的时刻；虚线: torch 保留的显存。拖动以缩放，点击查看谁存活；按键: 方向键、+ − 0、p 为峰值。",
  ],
  reading: ["reading {name} …", "正在读取 {name} …"],
  at_the_peaks: ["At the peaks", "峰值处"],
  difference_word: ["difference", "差值"],
  first: ["first", "第一个"],
  second: ["second", "第二个"],
  diagnose: ["Diagnose", "诊断"],
  language: ["中文", "English"],
  theme: ["light or dark", "浅色或深色"],
  model: ["Model", "模型"],
  gpu: ["Card", "显卡"],
  gpus: ["Count", "数量"],
  task: ["Task", "任务"],
  method: ["Method", "方法"],
  batch: ["Micro-batch per card", "每卡微批大小"],
  seq: ["Tokens per sample", "每样本词元数"],
  framework: ["Training loop", "训练框架"],
  precision: ["Precision", "精度"],
  optimizer: ["Optimizer", "优化器"],
  attention: ["Attention", "注意力"],
  checkpointing: ["Gradient checkpointing", "梯度检查点"],
  loss: ["Loss", "损失"],
  strategy: ["Data parallelism", "数据并行"],
  tp: ["Tensor parallel", "张量并行"],
  pp: ["Pipeline stages", "流水线级数"],
  offload: ["Offload", "卸载到主机"],
  "lora-rank": ["LoRA rank", "LoRA 秩"],
  "rollout-tokens": ["Tokens generated per sample", "每样本生成词元数"],
  prompt: ["Prompt tokens", "提示词元数"],
  "new-tokens": ["New tokens", "新生成词元数"],
  "kv-cache": ["KV cache", "KV 缓存"],
  reference: ["Reference model", "参考模型"],
  "gpus-per-node": ["Cards per machine", "每台机器的显卡数"],
  full: ["full", "全参数"],
  lora: ["LoRA", "LoRA"],
  qlora: ["QLoRA", "QLoRA"],
  default: ["default", "默认"],
  default_is: ["default: {value}", "默认: {value}"],
  from_you: ["you", "您"],
  from_default: ["default", "默认"],
  same_default: ["you, as by default", "您，同默认"],
  same_nothing: ["no effect here", "此处不起作用"],
  point_at: ["Choose a part of the bar: its lines, formulas, and what would shrink it.", "选择条形的某一部分: 显示其各项、公式以及减小它的办法。"],
  alive_in: ["the largest is alive in {phases}", "最大的一项存活于 {phases}"],
  more_lines: ["and {count} smaller lines, opened below", "另有 {count} 项较小，在下方展开"],
  shrinks: ["shrinks with: {what}", "可用以下办法减小: {what}"],
  drop_config: ["Or drop the model's config.json anywhere on this page.", "也可以把模型的 config.json 拖到此页任意位置。"],
  more: ["All other options", "其他全部选项"],
  search_options: ["Search options", "搜索选项"],
  drop: ["Drop a config.json, a training config, a log, a trace or a memory snapshot anywhere, or", "把 config.json、训练配置、日志、trace 或显存快照拖到此页任意位置，或"],
  choose_file: ["choose files", "选择文件"],
  phases: ["Peak of every phase", "各阶段的峰值"],
  lines: ["Every line at the peak", "峰值时的每一项"],
  host: ["CPU memory", "主机内存"],
  notes: ["Assumptions and notes", "假设与说明"],
  growth: ["How it grows", "如何增长"],
  changes: ["Cheapest ways to save memory", "代价最低的省显存做法"],
  changes_serve: ["Changes that help the engine", "有助于引擎的改动"],
  no_changes: ["no change saves much here", "没有能明显省显存的改动"],
  no_card: ["choose a card to see what would help", "选择显卡后显示可行的改动"],
  apply: ["apply", "应用"],
  undo: ["undo", "撤销"],
  undo_what: ["undo: {what}", "撤销: {what}"],
  fits: ["fits", "装得下"],
  then: ["then {size}", "之后 {size}"],
  slower: ["{percent} slower", "慢 {percent}"],
  faster: ["{percent} faster", "快 {percent}"],
  copy: ["Copy as", "复制为"],
  command: ["command", "命令"],
  yaml: ["YAML", "YAML"],
  python: ["Python", "Python"],
  markdown: ["Markdown", "Markdown"],
  link: ["link", "链接"],
  copied: ["copied", "已复制"],
  not_copied: ["could not be copied; it is selected below", "无法复制，请在下方手动复制"],
  pin: ["pin this job", "固定此任务"],
  unpin: ["unpin", "取消固定"],
  pinned: ["pinned", "已固定"],
  now: ["now", "当前"],
  nothing_pinned: ["Pin a job in Explore, change something, and both are shown here side by side.", "在“探索”中固定一个任务，再做改动，这里会并排显示两者。"],
  front: ["Memory against time", "显存与耗时"],
  front_ask: ["try changes and their combinations", "尝试各种改动及其组合"],
  front_none: ["choose a card first", "请先选择显卡"],
  front_pick: ["Point at a combination, or choose one with Tab and Enter.", "将指针移到某个组合上，或用 Tab 与 Enter 选择。"],
  as_given: ["as given", "不作改动"],
  cards: ["Which card?", "哪张显卡？"],
  cards_ask: ["try this job on 14 cards", "在 14 种显卡上试此任务"],
  paste: ["Paste an error message, a log or nvidia-smi's output. In the page without a server nothing leaves your browser.", "粘贴错误信息、日志或 nvidia-smi 的输出。无服务器版本中，任何内容都不会离开浏览器。"],
  log: ["Error message or log", "错误信息或日志"],
  with_job: ["compare with the job in Explore", "与“探索”中的任务比较"],
  ask: ["What happened?", "发生了什么？"],
  starting: ["starting the engine …", "正在启动引擎……"],
  starting_python: ["loading Python …", "正在加载 Python……"],
  starting_engine: ["loading the engine …", "正在加载引擎……"],
  working: ["computing …", "计算中……"],
  running: ["{why} … {seconds} s", "{why}……{seconds} 秒"],
  use: ["Use", "用途"],
  train: ["train", "训练"],
  infer: ["generate, score", "生成与打分"],
  serve: ["serve", "服务"],
  pass: ["Pass", "计算方式"],
  engine: ["Engine", "引擎"],
  vllm: ["vLLM", "vLLM"],
  sglang: ["SGLang", "SGLang"],
  tgi: ["TGI", "TGI"],
  "llama.cpp": ["llama.cpp", "llama.cpp"],
  generate: ["generate", "生成"],
  score: ["score", "打分"],
  encode: ["encode", "编码"],
  served: ["What the engine makes of the card", "引擎如何使用显卡"],
  "prefill-chunk": ["Prompt tokens per pass", "每次前向的提示词元数"],
  beams: ["Beams", "束宽"],
  quantize: ["Weights stored in", "权重存储格式"],
  "engine-version": ["Engine version", "引擎版本"],
  "rollout-engine": ["Rollout engine", "采样引擎"],
  "rollout-share": ["Its share of the card", "采样引擎占显卡的比例"],
  "rollout-sleep": ["It sleeps while others train", "训练时采样引擎休眠"],
  "rollout-offload": ["Waits in CPU memory meanwhile", "采样时移到主机内存"],
  critic: ["Critic", "评论模型"],
  failed: ["The engine did not start", "引擎未能启动"],
  in_browser: ["Runs in your browser: nothing is sent anywhere.", "在浏览器中运行：不会发送任何数据。"],
  in_server: ["Answered by the server on this machine.", "由本机服务器计算。"],
  took: ["read {name}", "已读取 {name}"],
  not_understood: ["{name}: neither a model's config, a job file nor a log", "{name}: 既不是模型配置、任务文件，也不是日志"],
  too_large: ["{name} is too large", "{name} 太大"],
  difference: ["{size} since the last change", "较上次 {size}"],
  skip: ["Skip to the result", "跳到结果"],
  options: ["Options", "选项"],
  result: ["Result", "结果"],
};

export const LANGUAGES = ["en", "zh"];

let lang = "en";

/** @param {string} chosen */
export function setLanguage(chosen) {
  lang = LANGUAGES.includes(chosen) ? chosen : "en";
  document.documentElement.lang = lang === "zh" ? "zh-CN" : "en";
}

export function language() {
  return lang;
}

/** @param {string} key @param {Record<string, string>} [values] */
export function say(key, values = {}) {
  const both = WORDS[key];
  if (both === undefined) throw new Error(`no words for ${key}`);
  let text = both[LANGUAGES.indexOf(lang)] ?? both[0];
  for (const [name, value] of Object.entries(values)) text = text.replace(`{${name}}`, value);
  return text;
}

/** Is there a word for this key? @param {string} key */
export function hasWord(key) {
  return key in WORDS;
}
