"""The command that reads what a release of Karpenter has, on a small invented checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import upstream

OPTIONS = """
var (
	QuietNodesFeatureGate = FeatureGate{
		Name:    "QuietNodes",
		Default: false,
	}
)

func (o *Options) AddFlags(fs *FlagSet) {
	fs.StringVar(&o.colorRaw, "node-color", env.WithDefaultString("NODE_COLOR", ""), "A color.")
	fs.BoolVarWithEnv(&o.Quiet, "quiet-start", "QUIET_START", false, "Whether to be quiet.")
}

func parse(gateMap map[string]bool) {
	if val, ok := gateMap["LoudNodes"]; ok {
		use(val)
	}
}
"""
LABELS = """
const (
	ColorLabelKey = apis.Group + "/node-color"
	CoreTagKey    = coreapis.Group + "/claim-color"
	ZoneIDLabel   = "topology.example.com/zone-id"
	Greeting      = "no key at all"
)
"""
METRICS = """
const colorSubsystem = "colors"

var Painted = NewCounter(prometheus.CounterOpts{
	Namespace: metrics.Namespace,
	Subsystem: colorSubsystem,
	Name:      "painted_total",
})
"""
CRD = """
spec:
  names: {kind: NodePool}
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          properties:
            spec:
              properties:
                color: {type: string, enum: [Red, Green]}
                shades:
                  items:
                    properties:
                      name: {type: string}
                free:
                  x-kubernetes-preserve-unknown-fields: true
"""


def _checkout(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(name="checkout")
def _invented_checkout(tmp_path: Path) -> Path:
    return _checkout(
        tmp_path / "newer",
        {
            "apis/apis.go": 'const (\n\tGroup = "example.com"\n)\n',
            "apis/v1/labels.go": LABELS,
            "apis/crds/pools.yaml": CRD,
            "operator/options/options.go": OPTIONS,
            "operator/options/options_test.go": 'fs.StringVar(&o.x, "only-in-a-test", "")',
            "metrics/constants.go": 'const (\n\tNamespace = "autoscaler"\n)\n',
            "paint/metrics.go": METRICS,
            "events/reason.go": 'const (\n\tPainted = "NodePainted"\n)\n',
            "paint/events/events.go": 'events.Event{Reason: "PaintFailed"}',
            "fake/options/fake.go": 'fs.StringVar(&o.x, "only-in-a-fake", "")',
        },
    )


def test_names_are_read_from_a_checkout(checkout: Path) -> None:
    assert upstream.declared_names(checkout) == {
        "field": {
            "NodePool.spec.color",
            "NodePool.spec.color=Green",
            "NodePool.spec.color=Red",
            "NodePool.spec.free",
            "NodePool.spec.free.*",
            "NodePool.spec.shades",
            "NodePool.spec.shades[].name",
        },
        "gate": {"QuietNodes", "LoudNodes"},
        "flag": {"node-color", "quiet-start"},
        "label": {
            "example.com/node-color",
            "karpenter.sh/claim-color",
            "topology.example.com/zone-id",
        },
        "event": {"NodePainted", "PaintFailed"},
        "metric": {"autoscaler_colors_painted_total"},
    }


def test_a_name_is_known_if_a_schema_accepts_it_or_a_text_names_it(checkout: Path) -> None:
    fields = frozenset({"NodePool.spec.color", "NodePool.spec.shades.*", "NodePool.spec.free"})
    text = "LoudNodes has no effect; NODE_COLOR and `example.com/node-color` are read. NodePainted."

    unknown = upstream.unknown_names(upstream.declared_names(checkout), fields, text)

    assert unknown == {
        "field": [
            "NodePool.spec.color=Green",
            "NodePool.spec.color=Red",
            "NodePool.spec.shades",
            "NodePool.spec.shades[].name",
        ],
        "gate": ["QuietNodes"],
        "flag": ["quiet-start"],
        "label": ["karpenter.sh/claim-color", "topology.example.com/zone-id"],
        "event": ["PaintFailed"],
        "metric": ["autoscaler_colors_painted_total"],
    }


def test_unknown_names_are_printed_and_fail_the_command(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upstream.main([str(checkout)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert "gate   QuietNodes" in lines
    assert "field  NodePool.spec.color=Red" in lines


def test_the_changes_since_an_older_release_are_marked(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = _checkout(
        tmp_path / "older",
        {
            "operator/options/options.go": OPTIONS.replace("QuietNodes", "SilentNodes"),
            "apis/v1/labels.go": LABELS.replace("karpenter.sh", "example.com"),
        },
    )

    assert upstream.main([str(checkout), "--since", str(older)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if " gate " in line] == [
        "+ gate   QuietNodes  (unknown)",
        "- gate   SilentNodes",
    ]
    assert not [line for line in lines if "flag" in line]


def test_what_the_project_knows_includes_its_schemas_and_its_pages() -> None:
    fields, text = upstream.known_names()

    assert "NodePool.spec.disruption.budgets[].reasons[]=Unhealthy" in fields
    assert "NodePool.spec.template.spec.taints[].key" in fields
    assert "karpenter.sh/disruption-cost" in text


def test_a_folder_that_is_no_checkout_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        upstream.main([str(tmp_path)])
    assert "is not a checkout of Karpenter: it has no folder pkg" in capsys.readouterr().err
