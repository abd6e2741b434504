"""The command that compares our scheduler with Karpenter's: its figures and its errors."""

from __future__ import annotations

import pytest

from benchmarks import against_karpenter
from benchmarks.against_karpenter import Run

PRINTED = """goos: linux
pkg: sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling
BenchmarkScheduling1000 \t       1\t6250538653 ns/op\t       200.0 nodes\t      1000 pods\t\
       160.0 pods/sec
PASS
"""


def test_figures_of_a_go_benchmark_are_parsed() -> None:
    assert against_karpenter.parse_figures(PRINTED) == Run(6.250538653, 1000, 200)


def test_ratios_compare_adjacent_runs() -> None:
    pairs = [(Run(8.0, 9, 2), Run(0.2, 9, 2)), (Run(30.0, 9, 2), Run(1.0, 9, 2))]
    pairs.append((Run(9.0, 9, 2), Run(0.18, 9, 2)))
    assert against_karpenter.table_row("diverse-9", pairs).endswith("| 40.0 x (30.0 to 50.0)")


def test_without_go_the_command_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match=r"Error: `go` is not on .*go\.dev"):
        against_karpenter.main(["diverse-100"])


@pytest.mark.parametrize("words", [["diverse-7"], ["--runs", "0"]])
def test_an_unknown_case_is_rejected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        against_karpenter.main(words)
    assert words[-1] in capsys.readouterr().err
