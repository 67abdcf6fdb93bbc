"""What a run trains for, in the frameworks' words → the Job's task: its rows per sample, head and companions."""

from __future__ import annotations

from vramcast.configs.records import Draft, Record

TASKS = {
    "dpo": "dpo",
    "ipo": "dpo",
    "kto": "kto",
    "orpo": "orpo",
    "rm": "reward",
    "reward": "reward",
    "grpo": "grpo",
    "rloo": "grpo",
    "reinforce_plus_plus": "grpo",
    "ppo": "ppo",
    "pt": "pretrain",
    "pretrain": "pretrain",
    "gkd": "distill",
    "embed": "embed",
    "embedding": "embed",
    "classify": "classify",
    "seq_cls": "classify",
}
# Preference losses that compare with no reference.
WITHOUT_REFERENCE = ("simpo", "cpo")


def say_task(word: str, source: Record | str | None, draft: Draft) -> None:
    """`dpo`, `rm`, …: a preference is two rows, which the task knows; words of other runs say nothing."""
    if word in WITHOUT_REFERENCE:
        draft.say("task", "dpo", source)
        draft.say("reference", "none", source)
    elif word in TASKS:
        draft.say("task", TASKS[word], source)


def say_reference(draft: Draft, source: Record | str | None, *, adapts: bool) -> None:
    """Adapters switched off are a reference already; otherwise it is a copy."""
    draft.say("reference", "adapter" if adapts else "same", source)
