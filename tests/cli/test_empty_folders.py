"""A folder without a NodePool, or with older ones: the error names the command that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.sourcefolders import CLASS, POOL, WEB, write
from tests.cli.test_sources import work

__all__ = ["work"]

TERRAFORM = f'resource "kubectl_manifest" "pool" {{\n  yaml_body = <<-EOT\n{POOL}EOT\n}}\n'
TAKE_OVER = "`reconciler init fleet --from .`"


@pytest.mark.parametrize("others", [{}, {"web.yaml": WEB}], ids=["no YAML", "only workloads"])
@pytest.mark.parametrize(
    ("files", "says", "remedy"),
    [
        ({"infra/main.tf": TERRAFORM}, "infra/main.tf has objects of Karpenter", TAKE_OVER),
        (
            {"pools/a.yaml.tpl": POOL, "pools/b.yaml.tpl": CLASS},
            "pools/a.yaml.tpl (and 1 more file) has objects of Karpenter",
            TAKE_OVER,
        ),
        ({"src/pools.ts": "apiVersion: 'karpenter.sh/v1'"}, "src/pools.ts has", "with -f"),
        ({"infra/main.tf": "locals {}\n"}, "no Terraform, template or program in it", "init fleet"),
        ({".terraform/main.tf": TERRAFORM}, "no Terraform, template or program", "init fleet"),
    ],
)
def test_a_folder_without_a_nodepool_names_what_makes_some(
    files: dict[str, str],
    says: str,
    remedy: str,
    others: dict[str, str],
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(work, files | others)
    assert main(["plan", "."]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert remedy in error
    if others:
        assert main(["validate", "."]) == 3
        assert says in capsys.readouterr().out


def test_the_remedy_for_terraform_makes_a_fleet_that_has_a_plan(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"main.tf": TERRAFORM + TERRAFORM.replace(POOL, CLASS).replace('"pool"', '"c"')})
    assert main(["plan", "."]) == 1
    assert TAKE_OVER in capsys.readouterr().err
    assert main(["init", "fleet", "--from", "."]) == 0
    assert main(["plan", "fleet", "--set", "cluster=none"]) == 0


def test_a_file_that_is_no_regular_one_is_not_opened(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"outer/main.tf": TERRAFORM, "fleet/web.yaml": WEB})
    (work / "fleet" / "main.tf").symlink_to(work / "outer" / "main.tf")
    assert main(["plan", "fleet"]) == 1
    assert "no Terraform, template or program" in capsys.readouterr().err


def test_objects_of_an_older_api_name_the_command_that_migrates_them(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = CLASS.replace("/v1\n", "/v1beta1\n")
    write(work, {"pool.yaml": POOL.replace("karpenter.sh/v1\n", "karpenter.sh/v1beta1\n")})
    write(work, {"class.yaml": old})
    assert main(["plan", "."]) == 1
    assert f"{TAKE_OVER} writes a migrated copy" in capsys.readouterr().err
    assert main(["init", "fleet", "--from", "."]) == 0
    assert main(["plan", "fleet", "--set", "cluster=none"]) == 0
    write(work, {"reconciler.yaml": "fleet: web\n"})
    capsys.readouterr()
    assert main(["plan", "."]) == 1
    assert TAKE_OVER not in capsys.readouterr().err


def test_a_family_that_selected_its_image_alone_names_the_alias(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = CLASS.replace("amiSelectorTerms: [{alias: al2023@latest}]", "amiFamily: AL2023")
    write(work, {"pool.yaml": POOL, "class.yaml": family})
    assert main(["plan", "."]) == 1
    assert "write amiSelectorTerms: [{alias: al2023@latest}]" in capsys.readouterr().err
    write(work, {"class.yaml": CLASS})
    assert main(["plan", ".", "--set", "cluster=none"]) == 0
