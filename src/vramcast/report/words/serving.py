"""Words about serving engines: the cache, what the engine prints, changes that make it start."""

from __future__ import annotations

SERVING = {
    "starts_not": ("{engine} {version} would not start", "{engine} {version} 将无法启动"),
    "cache": (
        "cache: {size} for {tokens} tokens of {each} each ({low} to {high} tokens)",
        "缓存: {size}，可容纳 {tokens} 个词元，每个 {each}（{low} 至 {high} 个词元）",
    ),
    "cache_exact": (
        "cache: {size} for {tokens} tokens of {each} each",
        "缓存: {size}，可容纳 {tokens} 个词元，每个 {each}",
    ),
    "requests": (
        "requests of {length} tokens at once: {count}",
        "长度 {length} 的请求可同时处理: {count} 个",
    ),
    "longest": ("one request may have {longest} tokens", "单个请求最多 {longest} 个词元"),
    "crossover": (
        "from {tokens} tokens on the cache outweighs the weights",
        "超过 {tokens} 个词元后，缓存大于权重",
    ),
    "prints": ("{engine} prints, as predicted", "预计 {engine} 会打印"),
    "changes": ("changes that make it start, cheapest first", "可使其启动的改动（从代价最小起）"),
    "more_cache": ("changes that give more cache", "可增大缓存的改动"),
    "helps": ("what would help, cheapest first", "可行的改动（从代价最小起）"),
    "then_fits": ("then it fits", "即可装下"),
    "no_change": (
        "no single change makes it start: a smaller model, or more cards",
        "没有单项改动能使其启动: 请换更小的模型，或增加显卡",
    ),
    "more_tokens": ("+{tokens} tokens", "+{tokens} 个词元"),
    "tokens": ("{tokens} tokens", "{tokens} 个词元"),
    "change": ("change", "改动"),
    "cost": ("price", "代价"),
    "cache_title": ("cache", "缓存"),
    "requests_title": ("requests", "请求数"),
}

# What a change costs.
COSTS = {
    "length": ("shorter requests", "请求更短"),
    "share": ("less room for peaks", "峰值余地更小"),
    "graphs": ("slower decoding", "解码变慢"),
    "rows": ("fewer requests at once", "同时处理的请求更少"),
    "chunk": ("slower prefill", "预填充变慢"),
    "cache": ("a little accuracy in long texts", "长文本精度略降"),
    "weights": ("a little accuracy", "精度略降"),
    "weights_more": ("some accuracy", "精度有所下降"),
    "cards": ("more cards", "需要更多显卡"),
    "moved": ("slower: the cache moves to the card layer by layer", "变慢: 缓存逐层移到显卡"),
    "unused_cache": ("nothing: one pass reads no cache", "无代价: 单次前向不读取缓存"),
    "layers": ("much slower: layers run on the CPU", "慢得多: 部分层在 CPU 上运行"),
}

SWEEP = {
    "title": (
        "{model} on {gpu} with {engine}: cache that so many requests take, of {capacity}",
        "{model}，{gpu}，{engine}: 相应数量的请求所占缓存，共 {capacity}",
    ),
    "caption": (
        "GiB of cache for so many requests of so many tokens; {engine} has {capacity}",
        "相应数量与长度的请求所占缓存（GiB）；{engine} 有 {capacity}",
    ),
    "corner": ("requests \\ tokens", "请求数 \\ 词元"),
    "most": ("at once", "可同时"),
}

LAYOUTS = {
    "weights": ("weights", "权重"),
    "cache": ("cache", "缓存"),
    "tokens": ("tokens", "词元"),
    "at_once": ("requests at once", "可同时请求数"),
    "peak": ("peak", "峰值"),
    "starts_not": ("would not start", "无法启动"),
    "each": (
        "weights, cache and peak of one GPU; tokens and requests of the whole engine",
        "权重、缓存与峰值为单张显卡，词元与请求数为整个引擎",
    ),
}
