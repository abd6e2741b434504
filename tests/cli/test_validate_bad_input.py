"""More than forty kinds of errors in a fleet: each gives one finding, at its position."""

# ruff: noqa: E501 - a case reads best on one line

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from reconciler.cli.main import main

CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {cluster: web}}]
  securityGroupSelectorTerms: [{tags: {cluster: web}}]
"""

POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: general
spec:
  template:
    metadata:
      labels: {team: web}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - key: karpenter.sh/capacity-type
          operator: In
          values: [spot]
      expireAfter: 720h
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    budgets:
      - nodes: 10%
    consolidateAfter: 0s
  limits: {cpu: 100}
"""


WORKLOAD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 30
      containers:
        - name: a
          resources: {requests: {cpu: 100m}}
"""


class Bad(NamedTuple):
    """A valid text, a replacement in it, and the expected finding."""

    name: str
    text: str
    old: str
    new: str
    code: str
    place: str
    path: str = ""


def pool(name: str, old: str, new: str, code: str, place: str, path: str = "") -> Bad:
    return Bad(name, POOL, old, new, code, place, path)


def klass(name: str, old: str, new: str, code: str, place: str, path: str = "") -> Bad:
    return Bad(name, CLASS, old, new, code, place, path)


def work(name: str, old: str, new: str, code: str, place: str, path: str = "") -> Bad:
    return Bad(name, WORKLOAD, old, new, code, place, path)


GATES = "featureGates: {StaticCapacity: true}\n"
TEXTS = {"class.yaml": CLASS, "pool.yaml": POOL, "web.yaml": WORKLOAD, "reconciler.yaml": GATES}
REQUIREMENT = "spec.template.spec.requirements[0]"
CASES = [
    pool("an unclosed list", "[spot]", "[spot", "syntax", "15:18"),
    pool("a tab as indentation", "  limits", "\tlimits", "indentation", "21:1"),
    pool("a template", "name: general", "name: {{ .name }}", "placeholder", "4:9", "metadata.name"),
    pool("a Helm template", "{cpu: 100}", "{{- with .a }}", "syntax", "21:13"),
    pool("a duplicate key", "  limits: {cpu: 100}", "  template: {}", "duplicate-key", "21:3"),
    pool("an unknown anchor", "{cpu: 100}", "*limits", "unknown-anchor", "21:11"),
    pool("a foreign tag", "cpu: 100", "cpu: !vault 100", "unsupported-tag", "21:17"),
    pool("a null as a key", "cpu: 100", "~: 100", "bad-key", "21:12"),
    pool("a list as a key", "cpu: 100", "? [a] : 100", "bad-key", "21:14"),
    pool("a number JSON does not know", "cpu: 100", "cpu: .inf", "bad-number", "21:17"),
    pool("no kind", "kind: NodePool\n", "", "missing-kind", "1:1", "kind"),
    pool("neither kind nor version", POOL[:47], "", "missing-kind", "1:1", "apiVersion"),
    pool("a text for an object", POOL, "hello\n", "not-an-object", "1:1"),
    pool("v1beta1", "karpenter.sh/v1\n", "karpenter.sh/v1beta1\n", "old-version", "1:13", "apiVersion"),
    pool("a Provisioner", "kind: NodePool", "kind: Provisioner", "old-version", "2:7", "kind"),
    pool("another group", "karpenter.sh/v1\n", "karpenter.io/v1\n", "wrong-version", "1:13", "apiVersion"),
    pool("no name", "  name: general", "  labels: {}", "missing-field", "3:1", "metadata.name"),
    pool("a bad name", "name: general", "name: General", "bad-format", "4:9", "metadata.name"),
    pool("a mistyped field", "limits:", "limit:", "unknown-field", "21:3", "spec.limit"),
    pool("a field too deep", "nodes: 10%", "node: 10%\n        nodes: 10%", "unknown-field", "19:9",
         "spec.disruption.budgets[0].node"),
    pool("a missing group", "{group: karpenter.k8s.aws, ", "{", "missing-field", "10:7",
         "spec.template.spec.nodeClassRef.group"),
    pool("a label that is a number", "team: web", "team: 7", "wrong-type", "8:22",
         "spec.template.metadata.labels.team"),
    pool("a label that YAML takes for a boolean", "team: web", "team: on", "wrong-type", "8:22",
         "spec.template.metadata.labels.team"),
    pool("a label value with a space", "team: web", "team: web shop", "bad-format", "8:22",
         "spec.template.metadata.labels.team"),
    pool("a label key with a space", "team: web", "my team: web", "bad-label-key", "8:16"),
    pool("a restricted label", "team: web", "karpenter.sh/team: web", "labels-domain-karpenter", "8:16",
         "spec.template.metadata.labels[karpenter.sh/team]"),
    pool("the label of the pool", "team: web", "karpenter.sh/nodepool: web", "labels-nodepool", "8:16"),
    pool("the label of the host", "team: web", "kubernetes.io/hostname: a", "labels-hostname", "8:16"),
    pool("an unknown AWS label", "team: web", "karpenter.k8s.aws/x: a", "labels-domain-aws", "8:16"),
    pool("a restricted requirement", "karpenter.sh/capacity-type", "karpenter.sh/x",
         "label-domain-karpenter", "12:16", f"{REQUIREMENT}.key"),
    pool("an operator in lower case", "operator: In", "operator: in", "not-allowed", "13:21",
         f"{REQUIREMENT}.operator"),
    pool("In without values", "[spot]", "[]", "requirement-in-values", "14:19", f"{REQUIREMENT}.values"),
    pool("one value for a list", "[spot]", "spot", "wrong-type", "14:19", f"{REQUIREMENT}.values"),
    pool("no capacity type", "[spot]", "[ondemand]", "unknown-capacity-type", "14:19",
         f"{REQUIREMENT}.values"),
    pool("a bound that is no number", "karpenter.sh/capacity-type\n          operator: In",
         "karpenter.k8s.aws/instance-cpu\n          operator: Gt", "requirement-bound", "14:20",
         f"{REQUIREMENT}.values[0]"),
    pool("more minValues than values", "values: [spot]", "values: [spot]\n          minValues: 2",
         "requirement-min-values", "15:22", f"{REQUIREMENT}.minValues"),
    pool("a duration in days", "720h", "30d", "bad-format", "15:20", "spec.template.spec.expireAfter"),
    pool("a duration beyond the calendar", "720h", "999999999999999h", "bad-duration", "15:20",
         "spec.template.spec.expireAfter"),
    pool("WhenUnderutilized", "WhenEmptyOrUnderutilized", "WhenUnderutilized", "old-spelling", "17:26",
         "spec.disruption.consolidationPolicy"),
    pool("expireAfter under disruption", "disruption:\n", "disruption:\n    expireAfter: 720h\n",
         "old-spelling", "17:5", "spec.disruption.expireAfter"),
    pool("a reason in lower case", "nodes: 10%", "nodes: 10%\n        reasons: [drifted]",
         "old-spelling", "20:19", "spec.disruption.budgets[0].reasons[0]"),
    pool("a reason twice", "nodes: 10%", "nodes: 10%\n        reasons: [Empty, Empty]",
         "duplicate-entry", "20:26", "spec.disruption.budgets[0].reasons[1]"),
    pool("the version in the class reference", "group: karpenter.k8s.aws", "apiVersion: karpenter.k8s.aws/v1",
         "old-spelling", "10:22", "spec.template.spec.nodeClassRef.apiVersion"),
    pool("kubelet in the pool", "expireAfter: 720h", "kubelet: {maxPods: 10}", "old-spelling", "15:7",
         "spec.template.spec.kubelet"),
    pool("a budget that is a number", "nodes: 10%", "nodes: 10", "wrong-type", "19:16",
         "spec.disruption.budgets[0].nodes"),
    pool("a budget above a hundred percent", "nodes: 10%", "nodes: 101%", "bad-format", "19:16",
         "spec.disruption.budgets[0].nodes"),
    pool("a schedule without duration", "nodes: 10%", 'nodes: 10%\n        schedule: "0 9 * * *"',
         "budget-schedule-duration", "19:9", "spec.disruption.budgets[0].duration"),
    pool("a schedule out of range", "nodes: 10%",
         'nodes: 10%\n        schedule: "61 9 * * *"\n        duration: 1h', "bad-schedule", "20:19",
         "spec.disruption.budgets[0].schedule"),
    pool("an unknown time zone", "nodes: 10%",
         'nodes: 10%\n        schedule: "0 9 * * *"\n        duration: 1h\n        timeZone: Mars/Base',
         "bad-time-zone", "22:19", "spec.disruption.budgets[0].timeZone"),
    pool("a weight of zero", "limits: {cpu: 100}", "weight: 0", "out-of-range", "21:11", "spec.weight"),
    pool("a weight in quotes", "limits: {cpu: 100}", 'weight: "5"', "wrong-type", "21:11", "spec.weight"),
    pool("a static pool with a limit", "limits:", "replicas: 2\n  limits:", "static-limits", "22:12",
         "spec.limits.cpu"),
    pool("a static pool with a weight", "limits: {cpu: 100}", "replicas: 2\n  weight: 5", "static-weight",
         "22:3", "spec.weight"),
    pool("a limit that is no quantity", "cpu: 100", "cpu: many", "bad-format", "21:17", "spec.limits.cpu"),
    pool("a taint twice", "expireAfter: 720h",
         "taints: [{key: a, effect: NoSchedule}]\n      startupTaints: [{key: a, effect: NoSchedule}]",
         "duplicate-taint", "16:23", "spec.template.spec.startupTaints[0]"),
    klass("role and profile", "role: nodes", "role: nodes\n  instanceProfile: p",
          "role-or-instance-profile", "6:3", "spec.instanceProfile"),
    klass("neither role nor profile", "  role: nodes\n", "", "role-or-instance-profile", "4:1", "spec.role"),
    klass("an unknown alias family", "al2023@latest", "ubuntu@latest", "alias-family", "6:30",
          "spec.amiSelectorTerms[0].alias"),
    klass("an alias without version", "al2023@latest", "al2023", "alias-format", "6:30",
          "spec.amiSelectorTerms[0].alias"),
    klass("a pinned Windows", "al2023@latest", "windows2022@v1", "alias-windows", "6:30",
          "spec.amiSelectorTerms[0].alias"),
    klass("an alias and an id", "{alias: al2023@latest}", "{alias: al2023@latest, id: ami-1}", "ami-term-id",
          "6:22", "spec.amiSelectorTerms[0]"),
    klass("another family than the alias", "role: nodes", "role: nodes\n  amiFamily: AL2",
          "ami-family-al2023", "6:3", "spec.amiFamily"),
    klass("no family without alias", "{alias: al2023@latest}", "{id: ami-1}", "ami-family-missing", "4:1",
          "spec.amiFamily"),
    klass("a term that selects nothing", "subnetSelectorTerms: [{tags: {cluster: web}}]",
          "subnetSelectorTerms: [{}]", "subnet-term-empty", "7:25", "spec.subnetSelectorTerms[0]"),
    klass("no terms", "subnetSelectorTerms: [{tags: {cluster: web}}]", "subnetSelectorTerms: []",
          "subnet-terms-empty", "7:24", "spec.subnetSelectorTerms"),
    klass("the selector of the alpha API", "subnetSelectorTerms: [{tags: {cluster: web}}]",
          "subnetSelector: {cluster: web}", "old-spelling", "7:3", "spec.subnetSelector"),
    klass("an empty tag value", "subnetSelectorTerms: [{tags: {cluster: web}}]",
          'subnetSelectorTerms: [{tags: {cluster: ""}}]', "selector-tags", "7:33",
          "spec.subnetSelectorTerms[0].tags.cluster"),
    klass("a tag of the engine", "role: nodes", "role: nodes\n  tags: {karpenter.sh/nodepool: a}",
          "tag-nodepool", "6:10", "spec.tags[karpenter.sh/nodepool]"),
    klass("a volume without size", "role: nodes", "role: nodes\n  blockDeviceMappings: [{ebs: {encrypted: true}}]",
          "volume-source", "6:31", "spec.blockDeviceMappings[0].ebs"),
    klass("an unknown kubelet setting", "role: nodes", "role: nodes\n  kubelet: {maxPod: 10}", "unknown-field",
          "6:13", "spec.kubelet.maxPod"),
    klass("an unknown eviction signal", "role: nodes",
          "role: nodes\n  kubelet: {evictionHard: {memory.free: 5%}}", "kubelet-signal", "6:28"),
    klass("inverted thresholds", "role: nodes",
          "role: nodes\n  kubelet: {imageGCHighThresholdPercent: 50, imageGCLowThresholdPercent: 60}",
          "kubelet-threshold-order", "6:42", "spec.kubelet.imageGCHighThresholdPercent"),
    klass("a mistyped field that is needed", "subnetSelectorTerms", "subnetSelectorTerm", "unknown-field",
          "7:3", "spec.subnetSelectorTerm"),
    klass("a mistyped field that a rule needs", "role: nodes", "rol: nodes", "unknown-field", "5:3", "spec.rol"),
    klass("a mistyped field in a term", "alias: al2023", "alis: al2023", "unknown-field", "6:23",
          "spec.amiSelectorTerms[0].alis"),
    pool("a mistyped name", "  name: general", "  nmae: general", "unknown-field", "4:3", "metadata.nmae"),
    pool("a mistyped spec", "spec:\n  template", "spce:\n  template", "unknown-field", "5:1", "spce"),
    pool("a mistyped key of a requirement", "- key:", "- kye:", "unknown-field", "12:11", f"{REQUIREMENT}.kye"),
    pool("a mistyped reference", "nodeClassRef:", "nodeClasRef:", "unknown-field", "10:7",
         "spec.template.spec.nodeClasRef"),
    pool("a mistyped kind", "kind: NodePool", "kind: Nodepool", "unknown-kind", "2:7", "kind"),
    klass("a mistyped kind of class", "kind: EC2NodeClass", "kind: EC2Nodeclass", "unknown-kind", "2:7", "kind"),
    work("a mistyped kind of workload", "kind: Deployment", "kind: Deploymnt", "unknown-kind", "2:7", "kind"),
    work("a workload of an old version", "apps/v1", "extensions/v1beta1", "old-version", "1:13", "apiVersion"),
    work("a mistyped group", "apps/v1", "app/v1", "wrong-version", "1:13", "apiVersion"),
    work("a number of pods in words", "replicas: 2", "replicas: two", "wrong-type", "5:13", "spec.replicas"),
    work("a number of pods below zero", "replicas: 2", "replicas: -2", "out-of-range", "5:13", "spec.replicas"),
    work("a request that is no quantity", "100m", "100mm", "bad-format", "13:39",
         "spec.template.spec.containers[0].resources.requests.cpu"),
    work("a request below zero", "100m", "-1", "negative-quantity", "13:39",
         "spec.template.spec.containers[0].resources.requests.cpu"),
    work("a request above its limit", "{requests: {cpu: 100m}}", "{requests: {cpu: 2}, limits: {cpu: 1}}",
         "requests-above-limits", "13:39", "spec.template.spec.containers[0].resources.requests.cpu"),
    work("a mistyped field of a workload", "requests:", "request:", "unknown-field", "13:23",
         "spec.template.spec.containers[0].resources.request"),
    work("no containers", WORKLOAD[WORKLOAD.index("containers"):], "containers: []\n", "too-few", "11:19",
         "spec.template.spec.containers"),
    work("a selector that is a number", "terminationGracePeriodSeconds: 30", "nodeSelector: {a: 1}",
         "wrong-type", "10:25", "spec.template.spec.nodeSelector.a"),
    work("an operator of no toleration", "terminationGracePeriodSeconds: 30",
         "tolerations: [{key: a, operator: Equals}]", "not-allowed", "10:40",
         "spec.template.spec.tolerations[0].operator"),
    work("a toleration of every value and of one", "terminationGracePeriodSeconds: 30",
         "tolerations: [{key: a, operator: Exists, value: b}]", "toleration-value", "10:55",
         "spec.template.spec.tolerations[0].value"),
    work("a skew of zero", "terminationGracePeriodSeconds: 30",
         "topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
         "out-of-range", "10:45", "spec.template.spec.topologySpreadConstraints[0].maxSkew"),
    work("a condition without values", "terminationGracePeriodSeconds: 30",
         "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule,"
         " labelSelector: {matchExpressions: [{key: a, operator: In}]}}]", "expression-values", "10:133",
         "spec.template.spec.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values"),
    work("a selector that misses its pods", "matchLabels: {app: web}", "matchLabels: {app: wob}",
         "selector-mismatch", "6:33", "spec.selector.matchLabels.app"),
    klass("a duplicate object", CLASS, f"{CLASS}---\n{CLASS}", "duplicate-name", "12:18", "metadata.name"),
]  # fmt: skip


def findings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, object]]]:
    code = main(["validate", str(folder), "-o", "json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    assert report["valid"] is (code == 0)
    return code, [d for d in report["diagnostics"] if d["severity"] != "info"]


def test_the_unmodified_texts_are_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    assert findings(tmp_path, capsys) == (0, [])


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_one_error_gives_one_finding_at_its_position(
    case: Bad, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert case.old in case.text
    for name, text in TEXTS.items():
        is_it = text == case.text
        (tmp_path / name).write_text(text.replace(case.old, case.new, 1) if is_it else text)
    spoiled = next(name for name, text in TEXTS.items() if text == case.text)

    code, found = findings(tmp_path, capsys)

    places = [(d["code"], f"{d['line']}:{d['column']}") for d in found]
    assert places == [(case.code, case.place)], found
    assert found[0]["file"] == spoiled
    assert not case.path or found[0]["path"] == case.path
    assert not re.search(r"\b1 [a-z]+s (are|have|were)\b", str(found[0]["message"]))
    assert code == (0 if found[0]["severity"] == "warning" else 3)


def test_there_are_at_least_forty_kinds() -> None:
    assert len(CASES) >= 40
    assert len({case.code for case in CASES}) >= 40
