# ruff: noqa: E501 (pasted messages keep their lines)
"""Facts that follow from the numbers, on the samples whose notes say what the right answer is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.diagnose import next_steps as advice
from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.readers.log import read_stream, read_text
from vramcast.diagnose.rules import code_patterns as code_table
from vramcast.diagnose.rules.findings import DEVICE_RULES
from vramcast.report import diagnose_json, diagnose_text
from vramcast.report.words import LANGUAGES, diagnose_causes
from vramcast.report.words import diagnose as diagnose_words

SAMPLES = Path(__file__).parent / "samples"
GIB, MIB = 2**30, 2**20


def sample(number: str) -> Diagnosis:
    (path,) = SAMPLES.glob(f"{number}_*.txt")
    with path.open("rb") as stream:
        return diagnose(read_stream(stream))


def values(diagnosis: Diagnosis, rule: str) -> dict[str, Any]:
    return next(dict(finding.values) for finding in diagnosis.findings if finding.rule == rule)


def rules(diagnosis: Diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


def v2(**clauses: str) -> str:
    """A torch 2 message from its parts."""
    return (
        f"CUDA out of memory. Tried to allocate {clauses['req']}. GPU 0 has a total capacity of {clauses['total']} of which "
        f"{clauses['free']} is free. {clauses.get('processes', '')}{clauses.get('allowed', '')}Of the allocated memory "
        f"{clauses['allocated']} is allocated by PyTorch, and {clauses['cached']} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )


def test_the_process_divides_into_tensors_cache_and_the_rest() -> None:
    # 94.98 GiB − 92.43 GiB − 703.27 MiB, each as printed
    outside = round(94.98 * GIB) - round(92.43 * GIB) - round(703.27 * MIB)
    assert values(sample("14"), "this_process")["outside_bytes"] == outside
    assert outside / GIB == pytest.approx(1.86, abs=0.01)


def test_the_hint_cannot_help_when_free_and_cache_together_are_too_little() -> None:
    # 12.73 + 9.35 = 22.08 < 22.78
    found = values(sample("13"), "hint_cannot_help")
    assert found["room_bytes"] == round(12.73 * GIB) + round(9.35 * GIB)
    assert "expandable_segments" not in [step.step for step in sample("13").advice]


def test_the_hint_may_help_when_a_large_cache_would_have_served_the_request() -> None:
    diagnosis = sample("10")  # 2.30 GiB cached, 1.70 GiB asked for
    assert {"fragmentation", "hint_may_help"} <= rules(diagnosis)
    assert diagnosis.advice[0].step == "expandable_segments"


def test_a_cache_in_crumbs_on_a_full_card_is_not_called_the_cause() -> None:
    diagnosis = sample("14")  # 0.7 GiB of 93 cached, 130 MiB asked for
    assert {"crumbs", "hint_delays"} <= rules(diagnosis)
    assert "fragmentation" not in {item.name for item in diagnosis.hypotheses}
    assert diagnosis.hypotheses[0].name == "optimizer_foreach"


def test_other_processes_are_named_and_summed() -> None:
    found = values(sample("15"), "other_processes_decide")
    assert found["others_bytes"] == round(1.88 * GIB) + round(13.17 * GIB)
    assert found["pids"] == "3269913, 3269914"
    assert values(sample("15"), "shared_card")["count"] == 3


def test_memory_that_no_listed_process_holds_is_noticed() -> None:
    # 83.05 − 0.137 − 23.33 GiB on a card where only this process is listed
    found = values(sample("18"), "unlisted_processes")
    assert found["unlisted_bytes"] == round(83.05 * GIB) - round(140.38 * MIB) - round(23.33 * GIB)


def test_old_messages_reveal_a_foreign_holder_by_subtraction() -> None:
    found = values(sample("05"), "held_outside_pytorch")
    assert found["rest_bytes"] == round(3.79 * GIB) - 6 * MIB - 666 * MIB
    assert sample("05").hypotheses[0].name == "another_process"


def test_in_a_container_the_listed_process_is_oneself() -> None:
    text = v2(
        req="2.32 GiB", total="79.15 GiB", free="1.04 GiB", allocated="74.89 GiB", cached="1.52 GiB",
        processes="Process 2764413 has 78.10 GiB memory in use. ",
    )  # fmt: skip
    diagnosis = diagnose(read_text(text))
    assert values(diagnosis, "container")["pid"] == 2764413
    assert not rules(diagnosis) & {"other_processes", "other_processes_decide", "shared_card"}
    assert values(diagnosis, "this_process")["outside_bytes"] == round(78.10 * GIB) - round(
        74.89 * GIB
    ) - round(1.52 * GIB)


def test_a_listed_process_that_holds_less_than_pytorch_reserved_is_somebody_else() -> None:
    text = v2(
        req="2.32 GiB", total="79.15 GiB", free="1.04 GiB", allocated="40.00 GiB", cached="1.52 GiB",
        processes="Process 11 has 36.00 GiB memory in use. ",
    )  # fmt: skip
    diagnosis = diagnose(read_text(text))
    assert "container" not in rules(diagnosis)
    assert values(diagnosis, "other_processes_decide")["others_bytes"] == 36 * GIB


def test_a_request_above_the_card_excludes_every_other_cause() -> None:
    for number in ("21", "25"):
        assert sample(number).hypotheses[0].name == "one_tensor_larger_than_card"
        assert "hint_may_help" not in rules(sample(number))


def test_a_cap_is_compared_not_the_card() -> None:
    diagnosis = sample("30")  # 1.05 GiB allowed of 255.98
    assert diagnosis.hypotheses[0].name == "cap_by_fraction"
    assert "free_yet_refused" not in rules(diagnosis)


def test_plenty_free_and_yet_refused_is_not_a_capacity_problem() -> None:
    diagnosis = sample("32")  # 2 MiB refused, 203 GiB free
    assert {"free_yet_refused", "hint_beside_the_point", "last_straw"} <= rules(diagnosis)
    assert diagnosis.hypotheses[0].name == "driver_or_runtime_limit"


def test_allocated_above_the_card_is_windows_spilling() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 8.00 GiB total capacity; 14.21 GiB already allocated; "
        "0 bytes free; 14.70 GiB reserved in total by PyTorch)"
    )
    assert values(diagnose(read_text(text)), "spilled")["held_bytes"] == round(14.70 * GIB)


def test_two_mebibytes_is_a_segment_and_only_the_last_straw() -> None:
    assert values(sample("05"), "last_straw")["tensor_bytes"] == MIB


def test_a_silent_kill_is_the_hosts_and_its_size_follows_from_the_log() -> None:
    diagnosis = sample("46")  # 28.43 GB at 22.6 %
    assert diagnosis.hypotheses[0].name == "host_memory"
    assert values(diagnosis, "host_before_the_end")["total_bytes"] / GIB == pytest.approx(
        125.8, abs=0.1
    )


def test_a_kill_after_a_full_card_is_the_launcher_clearing_up() -> None:
    full = v2(
        req="2.00 GiB", total="79.15 GiB", free="1.04 GiB", allocated="76.00 GiB", cached="0.50 GiB"
    )
    kill = "Signal 9 (SIGKILL) received by PID 4711"
    assert diagnose(read_text(f"{full}\n{kill}")).hypotheses[0].name != "host_memory"
    assert diagnose(read_text(f"{kill}\n{full}")).hypotheses[0].name == "host_memory"


@pytest.mark.parametrize(
    "text",
    [
        "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", '"exitCode": 137', "ExitCode=137",
        "returned non-zero exit status -9.", "container exited with code 137", "exitcode  : -9 (pid: 77)", "Killed",
        "subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.", "/bin/bash: line 1:  4242 Killed  python train.py",
    ],
)  # fmt: skip
def test_a_kill_is_recognised_in_every_launchers_words(text: str) -> None:
    assert diagnose(read_text(text)).hypotheses[0].name == "host_memory"


@pytest.mark.parametrize(
    "text",
    [
        "Process finished with exit code 0", "return code = 1", "exited with code 1", "killed the noise", "exit code: 13",
        "lr 1e-9 loss 137", "OOMKilled: false", "memory limit reached?", "no CUDA out of the box", "epoch 9 memory bank",
    ],
)  # fmt: skip
def test_ordinary_lines_are_not_taken_for_failures(text: str) -> None:
    assert [item.kind for item in read_text(text).observations if item.is_failure()] == []


def test_a_kill_inside_a_container_names_the_limit() -> None:
    assert "killed_by_limit" in rules(sample("48"))
    assert values(sample("48"), "killed_holding")["process_bytes"] == (8225208 + 26912) * 1024


def test_a_warning_that_is_no_failure_gets_no_cause() -> None:
    diagnosis = sample("55")
    assert rules(diagnosis) == {"not_a_failure"}
    assert diagnosis.hypotheses == ()


def test_bare_contexts_of_one_program_on_one_card_are_misplaced_ranks() -> None:
    found = values(sample("77"), "stray_contexts")
    assert (found["count"], found["total_bytes"]) == (7, 7 * 871 * MIB)


def test_a_counter_that_only_grows_is_noticed_and_one_that_settles_is_not() -> None:
    grows = "\n".join(
        f"MA {step + 1}.00 GB Max_MA 20 GB CA 20 GB Max_CA 20 GB" for step in range(12)
    )
    settles = "\n".join(
        f"MA {min(step, 2) + 1}.00 GB Max_MA 20 GB CA {20 + step} GB Max_CA 20 GB"
        for step in range(12)
    )
    assert "growing" in rules(diagnose(read_text(grows)))
    assert "growing" not in rules(diagnose(read_text(settles)))


def test_every_rule_cause_and_step_has_words_in_both_languages() -> None:
    tables = (
        diagnose_words.FINDINGS,
        diagnose_words.NOTES,
        diagnose_causes.CAUSES,
        diagnose_causes.STEPS,
        diagnose_causes.HEADINGS,
    )
    for table in tables:
        assert all(
            english and chinese and english != chinese for english, chinese in table.values()
        )
    causes = {name for name, _, _ in code_table.CODE_OF_CAUSES} | set(advice.STEPS)
    assert causes == set(diagnose_causes.CAUSES)
    tables_of_steps = (advice.STEPS, advice.STEPS_OF_INFERENCE, advice.STEPS_OF_OLD_TORCH)
    given = {step for table in tables_of_steps for steps in table.values() for step in steps}
    assert given == set(diagnose_causes.STEPS)


def test_every_sample_renders_in_both_languages_with_every_brace_filled() -> None:
    used = set()
    for path in SAMPLES.glob("*.txt"):
        with path.open("rb") as stream:
            diagnosis = diagnose(read_stream(stream))
        used |= rules(diagnosis)
        for lang in LANGUAGES:
            text = diagnose_text.render(diagnosis, lang=lang)
            assert text
            assert "{" not in text
            assert len(diagnose_json.render(diagnosis, lang=lang)["findings"]) == len(
                diagnosis.findings
            )
    assert used <= set(diagnose_words.FINDINGS)
    assert len(used) >= 30


def test_rules_are_silent_about_an_observation_without_numbers() -> None:
    (observation,) = read_text("RuntimeError: CUDA out of memory.").observations
    assert [rule.__name__ for rule in DEVICE_RULES if rule(observation)] == ["truncated"]


def test_a_card_that_is_full_with_nobody_listed_points_to_another_process() -> None:
    table = (
        "| N/A   36C    P0    41W / 300W |  12799MiB / 16280MiB |      0%      Default |\n"
        "+-------------------------------+----------------------+----------------------+\n\n"
        "+-----------------------------------------------------------------------------+\n"
        "| Processes:                                                       GPU Memory |\n"
        "|=============================================================================|\n"
    )
    row = "|    0     31794    C   python                                        12371MiB |\n"
    assert [item.name for item in diagnose(read_text(table)).hypotheses] == ["another_process"]
    assert diagnose(read_text(table + row)).hypotheses == ()


def test_a_failure_after_many_steps_may_have_grown_and_one_in_the_first_steps_has_not() -> None:
    message = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 5.42 GiB"
    message += " already allocated; 23.50 MiB free; 5.43 GiB reserved in total by PyTorch)\n"
    for bar, has_grown in (
        (" 878/1417 [00:15<00:09, 56.28it/s]", True),
        (" 2/1417 [00:01<00:09, 2.2it/s]", False),
    ):
        names = [
            item.name for item in diagnose(read_text(f"Epoch 0:  {bar}\n{message}")).hypotheses
        ]
        assert ("memory_grows" in names) is has_grown
    loading = f"Loading checkpoint shards: 42%|███ | 16/38 [00:14<00:19, 1.13it/s]\n{message}"
    assert read_text(loading).progress is None
