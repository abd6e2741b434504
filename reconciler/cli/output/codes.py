"""What the code of each finding means and how to resolve it, for ``explain CODE`` and SARIF.

The codes of rules that a schema states (``x-kubernetes-validations``) come from the schemas. A test
compares the codes here with those that the source can emit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.cli.output.sourcecodes import SOURCE_CODES
from reconciler.cli.output.workloadcodes import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class FindingCode(NamedTuple):
    """What a code means, and what to do about a finding with it."""

    meaning: str
    remedy: str


_FILES: Final = {
    "alias-bomb": (
        "YAML aliases or merges expand to more data than a file may contain.",
        "Write the values out, or split the file.",
    ),
    "bad-key": ("A key of a mapping is not a string.", "Quote the key."),
    "bad-merge": ("<< merges something other than mappings.", "Merge a mapping or a list of them."),
    "bad-number": ("A number cannot be written in JSON.", "Write a finite decimal number."),
    "bad-setting": (
        "A setting has a value that no command can use.",
        "Correct the value as the message says.",
    ),
    "bad-tag": ("A value does not fit its YAML tag.", "Correct the value, or remove the tag."),
    "binary-file": (
        "A file contains a NUL byte.",
        "Save it as text, or move it out of the folder.",
    ),
    "broken-link": ("A symbolic link leads nowhere.", "Correct its target, or remove the link."),
    "directory-loop": (
        "A symbolic link leads to a folder that was already read.",
        "Remove the link.",
    ),
    "duplicate-key": (
        "A mapping has the same key twice, which Kubernetes rejects.",
        "Remove one of them.",
    ),
    "extra-document": (
        "reconciler.yaml has more than one YAML document.",
        "Merge them: only the first is read.",
    ),
    "indentation": (
        "A line is indented by the wrong number of columns.",
        "Align it with the other keys of its mapping.",
    ),
    "merge-conflict": (
        "A file contains the markers of an unresolved merge.",
        "Resolve the conflict, and remove the markers.",
    ),
    "not-a-file": ("Something in the folder is not a regular file.", "Remove it from the folder."),
    "not-utf8": ("A file is not encoded in UTF-8.", "Save it as UTF-8."),
    "outside-link": (
        "A symbolic link leads out of the fleet folder, where a pull request must not read files.",
        "Copy the file into the folder.",
    ),
    "recursive-alias": ("An alias is inside its own anchor.", "Write the value out."),
    "submodule": (
        "The folder contains a git submodule, which is not read.",
        "Commit the files themselves.",
    ),
    "syntax": ("A file is not valid YAML.", "Correct it at the position that is shown."),
    "too-deep": (
        "Values or folders are nested too deeply.",
        "Flatten them; docs/limits.md has the limits.",
    ),
    "too-large": (
        "A file or the folder exceeds a limit of size or number.",
        "Split it, or move other files out of the folder; docs/limits.md has the limits.",
    ),
    "too-many-findings": (
        "There are more findings than are shown.",
        "Correct the first ones, and validate again.",
    ),
    "unknown-anchor": ("An alias names an anchor that is not defined before it.", "Define it."),
    "unreadable": ("A file cannot be read.", "Check its permissions."),
    "unsupported-tag": ("A YAML tag is not supported.", "Remove the tag."),
}

_OBJECTS: Final = {
    "bad-duration": (
        "A value is not a duration.",
        "Write numbers with units, as in 90s, 1h30m or 720h.",
    ),
    "bad-format": ("A value has a format that the API server rejects.", "Correct the value."),
    "bad-label-key": ("The key of a label is not valid.", "Write prefix/name as Kubernetes does."),
    "bad-label-value": (
        "The value of a label is not valid.",
        "Use at most 63 letters, digits, -, _ and dots, with a letter or digit at both ends.",
    ),
    "bad-price": ("A value is not a price.", "Write dollars as a decimal number, as in 0.042."),
    "bad-quantity": (
        "A value is not a Kubernetes quantity.",
        "Write a number with a unit, as in 500m, 4Gi or 100G.",
    ),
    "bad-schedule": (
        "The schedule of a budget is not a cron expression.",
        "Write five fields or a macro, as in `0 9 * * mon-fri` or `@daily`.",
    ),
    "bad-taint": ("A taint is not valid.", "Write key, value and effect as Kubernetes does."),
    "bad-time": ("A value is not a point in time.", "Write RFC 3339, as in 2026-01-31T12:00:00Z."),
    "bad-time-zone": (
        "A time zone is not in the IANA database.",
        "Write its name, as in Europe/Berlin.",
    ),
    "bad-value": ("A value cannot be part of an object's hash.", "Correct the value."),
    "duplicate-entry": ("A list has the same entry twice.", "Remove one of them."),
    "contradiction": (
        "Two requirements on one label have no value in common, so no instance type matches.",
        "Remove one of them, or let them have a value in common.",
    ),
    "duplicate-name": (
        "Two objects of one kind, or two policies, have the same name.",
        "Rename or remove one.",
    ),
    "duplicate-taint": ("Two taints have the same key and effect.", "Remove one of them."),
    "empty": ("A value is empty where content is required.", "Fill it in, or remove the field."),
    "empty-fleet": (
        "The folder contains no NodePool, which usually means a failed checkout.",
        "Pass the fleet folder, or commit a NodePool.",
    ),
    "gate-is-off": (
        "A field has no effect because its feature gate is off.",
        "Set the gate under featureGates in reconciler.yaml, or remove the field.",
    ),
    "eks-label": (
        "A requirement is on a label of EKS that no instance type has, so it selects nothing.",
        "Use the label that the message suggests.",
    ),
    "idle-limit": (
        "A limit names a resource that no node has, so it limits nothing.",
        "Correct the name of the resource.",
    ),
    "idle-time-zone": (
        "A budget has a time zone and no schedule, so the zone has no effect.",
        "Add a schedule, or remove timeZone.",
    ),
    "idle-values": (
        "A requirement has values that its operator ignores.",
        "Use In or NotIn, or remove the values.",
    ),
    "missing-field": ("A required field is missing.", "Add the field."),
    "without-effect": (
        "A value is valid, and nothing reads it.",
        "Remove it, or see the message for what has the effect.",
    ),
    "newer-karpenter": (
        "A field exists only in a newer release of Karpenter than the one that the fleet follows.",
        "Set karpenter in reconciler.yaml, or remove the field.",
    ),
    "memory-unit": (
        "A requirement on memory is far below the memory of any instance type.",
        "Write MiB: 16 GiB are 16384.",
    ),
    "missing-kind": ("An object has no apiVersion or no kind.", "Add both."),
    "missing-nodepool": (
        "The configuration has settings of a NodePool that is not in the folder.",
        "Correct the name, or remove the settings.",
    ),
    "missing-nodeclass": (
        "A NodePool references an EC2NodeClass that does not exist, so it launches nothing.",
        "Commit the EC2NodeClass, or correct nodeClassRef.",
    ),
    "never-disrupts": (
        "The budgets of a NodePool never allow a disruption, so drift is never rolled out.",
        "Allow at least one node at some time.",
    ),
    "not-allowed": ("A value is not one of the allowed values.", "Use one that the message lists."),
    "not-an-object": ("A document is not an object.", "Write a mapping with apiVersion and kind."),
    "old-spelling": (
        "A field or value has the spelling of an older API version. It is read as the current one.",
        "Run `reconciler validate --fix`, which rewrites it in place.",
    ),
    "old-version": (
        "An object has an API version that Karpenter no longer serves.",
        "Migrate it; `reconciler init` does so for a whole folder.",
    ),
    "operator-setting": (
        (
            "reconciler.yaml contains a setting that only the operator may choose, because a pull "
            "request could otherwise choose credentials, endpoints or programs."
        ),
        "Move it to the operator's configuration file, the environment or a flag.",
    ),
    "out-of-range": ("A number is out of range.", "Use a number within the range that is shown."),
    "reserved-name": ("The name of a policy is reserved.", "Choose another name."),
    "skipped-kinds": (
        "The folder contains objects of kinds that are not read.",
        "Nothing needs to be done; move them elsewhere to avoid the note.",
    ),
    "too-few": ("A list has too few entries.", "Add entries."),
    "too-long": ("A text is too long.", "Shorten it."),
    "too-many": ("A list or mapping has too many entries.", "Remove some."),
    "too-many-nodes": ("NodePools with replicas request too many nodes.", "Lower replicas."),
    "unknown-capacity-type": (
        "A capacity type is neither spot, on-demand nor reserved.",
        "Use one of the three.",
    ),
    "unknown-field": (
        "A field is unknown, often because of a typo. Kubernetes would drop it silently.",
        "Correct or remove it.",
    ),
    "unknown-instance-family": (
        "No instance type of the bundled catalog is in this family.",
        "Correct the name; ignore this if AWS has added the family since.",
    ),
    "unknown-instance-type": (
        "The instance type is not in the bundled catalog.",
        "Correct the name; ignore this if AWS has added the type since.",
    ),
    "unknown-kind": ("The kind of an object is unknown.", "Correct the kind."),
    "unknown-label-value": (
        "No instance type has this architecture, operating system, category, generation or size.",
        "Use one of the values that are shown.",
    ),
    "unknown-region": (
        "AWS has no region of this name.",
        "Correct the name; ignore this if AWS has added the region since.",
    ),
    "unknown-zone": (
        "The zone is not in the bundled catalog.",
        "Correct the name; ignore this if AWS has added the zone since.",
    ),
    "wrong-type": ("A value has the wrong type for its field.", "Write a value of that type."),
    "wrong-version": ("The apiVersion does not fit the kind.", "Use the one that is shown."),
    "zone-of-another-region": (
        "A zone is not in the region of the fleet.",
        "Use a zone of the region, or correct aws.region.",
    ),
}

_KUBELET: Final = {
    "kubelet-expression": ("An expression of the kubelet cannot be read.", "Correct it."),
    "kubelet-owned": (
        "A setting of the kubelet is computed for each node and cannot be set.",
        "Remove it.",
    ),
    "kubelet-pair": (
        "Soft eviction thresholds and their grace periods do not match.",
        "Give each threshold a grace period, and vice versa.",
    ),
    "kubelet-reserved": (
        "A resource cannot be reserved under this name.",
        "Use cpu, memory, ephemeral-storage or pid.",
    ),
    "kubelet-signal": (
        "An eviction signal is unknown.",
        "Use one of those that the message lists.",
    ),
    "kubelet-threshold-order": (
        "The low threshold of image garbage collection is not below the high one.",
        "Lower it, or raise the other.",
    ),
    "kubelet-unsupported": (
        "The image family ignores a setting of the kubelet.",
        "Remove the setting, or use another image family.",
    ),
    "kubelet-value": ("A value of the kubelet is not valid.", "Correct it as the message says."),
}

_POLICIES: Final = {
    "bad-expression": ("The expression of a policy cannot be evaluated.", "Correct it."),
    "unknown-plan-field": (
        "The expression of a policy names a field that no plan has.",
        "Correct the name; `schemas/plan.v1.json` lists the fields of a plan.",
    ),
    "unchecked-policy": (
        "A policy was not checked.",
        "Install the extra `cel`, or pass what the policy needs.",
    ),
}

_PLAN: Final = {
    "budget-unreadable": (
        "A PodDisruptionBudget cannot be read, so no pod that it may cover is moved.",
        "Correct the object in the cluster.",
    ),
    "capacitybuffer-gate-off": (
        "CapacityBuffers have no effect because their feature gate is off.",
        "Set featureGates.CapacityBuffer in reconciler.yaml.",
    ),
    "capacitybuffer-unresolved": (
        "A CapacityBuffer names something that does not exist.",
        "Create it, or correct the reference.",
    ),
    "catalog": ("Shows the source of the instance types.", "Nothing needs to be done."),
    "catalog-fallback": (
        "Current prices or types could not be read; older ones are used.",
        "Check the permissions that the message names.",
    ),
    "catalog-note": ("Contains information about the catalog.", "Nothing needs to be done."),
    "cluster-not-named": (
        "clusterName is not set. In a real account `apply` and `run` require it.",
        "Set clusterName in reconciler.yaml.",
    ),
    "commitment-use-unknown": (
        "A savings plan or reservation does not affect prices, because its use is unknown.",
        "Grant the permission that the message names.",
    ),
    "consolidation-waits": (
        "Consolidation waits until nodes that start or drain have settled.",
        "Nothing needs to be done.",
    ),
    "daemonset-unreadable": (
        "A DaemonSet cannot be read, so its share of new nodes is unknown.",
        "Correct the object in the cluster.",
    ),
    "fleet-removed": (
        "The base has a fleet that the change removes or renames; its nodes go.",
        "Check that nothing needs them, or restore its folder and its name.",
    ),
    "lock-damaged": ("reconciler.lock cannot be read.", "Run `reconciler lock`."),
    "lock-stale": (
        "reconciler.lock does not fit the node classes of the folder.",
        "Run `reconciler lock`, and commit the file.",
    ),
    "locked": (
        "Images, subnets and prices come from reconciler.lock.",
        "Nothing needs to be done.",
    ),
    "nodeclass-not-ready": (
        "A node class is not ready, so its NodePools launch nothing.",
        "`reconciler check` shows what it lacks.",
    ),
    "no-instance-types": (
        "No instance type satisfies the requirements of a NodePool, so it launches nothing.",
        "Relax the requirement that is named, or remove one of those that exclude each other.",
    ),
    "nodepool-not-ready": (
        "The status of a NodePool is not ready, so it launches nothing.",
        "Read the conditions of the object in the cluster.",
    ),
    "old-snapshot": (
        "The snapshot is older than --snapshot-max-age, so the cluster may differ from it.",
        "Capture it again, or allow a greater age.",
    ),
    "overlay-conflict": (
        "Two NodeOverlays of equal weight set the same value for an offering; one is not applied.",
        "Give one of them a higher weight.",
    ),
    "overlay-gate-off": (
        "NodeOverlays have no effect because their feature gate is off.",
        "Set featureGates.NodeOverlay in reconciler.yaml.",
    ),
    "overlay-invalid": ("A NodeOverlay is not valid and is not applied.", "Correct it."),
    "preference-invalid": ("The preference annotation of a NodePool is invalid.", "Correct it."),
    "preference-rounded": (
        "The adjustment of a preference is rounded, because adjustments are whole percents.",
        "Write a whole percent to avoid the note.",
    ),
    "preferences-given-up": (
        "Preferences of pods were dropped: they cannot be met, or cost more than allowed.",
        "`reconciler explain pod NAME` shows what each costs.",
    ),
    "prices": ("Shows the source of prices.", "Nothing needs to be done."),
    "progress-deadline": (
        "A rollout has not progressed within its deadline.",
        "`reconciler status` shows what it waits for; `reconciler resume` continues it.",
    ),
    "region-changed": (
        "The change moves the fleet to another region, where its nodes are not seen.",
        "Keep the region, and create another fleet in the new one.",
    ),
    "not-looked-up": (
        "A decision depends on a fact of the account that was not looked up, and is assumed.",
        "Plan with access to AWS, or lock the facts with `reconciler lock`.",
    ),
    "selection-unknown": (
        "The change selects other images, subnets or security groups, which were not looked up.",
        "Plan with access to AWS, or pin both commits with `reconciler lock`.",
    ),
    "spot-estimated": (
        "Spot prices are estimates, because the prices of the account were not read.",
        "Allow ec2:DescribeSpotPriceHistory, or accept the estimate.",
    ),
    "placement-limit": (
        "Rules between pods exceed the work of a placement; it names whose. Others go first.",
        "Use fewer different topology spread and (anti-)affinity rules there, or a ResourceQuota.",
    ),
    "workloads-unknown": (
        "No workloads are known, so neither the number of nodes nor their cost is.",
        "Pass `--snapshot` or `-f`, or put workloads into the folder.",
    ),
    "work-limit": (
        "The search for cheaper nodes reached its work limit.",
        "The next pass continues; raise the limit that the message names to search longer.",
    ),
}

_RUNNING: Final = {
    "contested-instance": (
        "An instance is recorded for this fleet, but its tags do not name the fleet.",
        "Restore its tags. Until then no node is launched or disrupted.",
    ),
    "interruption-queue": (
        "The interruption queue cannot be read, so spot interruptions are not noticed early.",
        "Create the queue, or correct aws.interruptionQueue.",
    ),
    "node-capacity": (
        "A Node reports more than its instance has, or amounts that are not valid.",
        "Check what modifies the Node; the recorded amounts are used.",
    ),
    "node-labels": (
        "A Node has labels or taints that differ from its NodeClaim, or are not valid.",
        "Check what modifies the Node; the recorded ones are used.",
    ),
    "node-provider-id": (
        "The providerID of a Node is not that of its NodeClaim, or two Nodes have the same.",
        "Check what modifies the Node; the recorded one is used.",
    ),
    "nodes-missing": (
        (
            "Instances of the fleet run, but none of their Nodes is in the cluster, which "
            "usually means the wrong cluster."
        ),
        "Check kubernetes.context. Until then nothing is terminated.",
    ),
    "karpenter-running": (
        "Karpenter runs in the same cluster; `apply` and `run` act only without it.",
        "Scale Karpenter to zero, or let the operator set kubernetes.allowKarpenter.",
    ),
    "unknown-instance": (
        "An instance has the tags of this fleet, but is not recorded; nothing else is launched.",
        "Run `reconciler state adopt`: it lists what can be adopted.",
    ),
    "unreadable-object": (
        "An object of the cluster cannot be read and is ignored.",
        "Correct the object.",
    ),
}

CODES: Final[Mapping[str, FindingCode]] = {
    code: FindingCode(*texts)
    for group in (_FILES, _OBJECTS, _KUBELET, WORKLOADS, SOURCE_CODES, _POLICIES, _PLAN, _RUNNING)
    for code, texts in group.items()
}
"""What is written here about each code; those of schema rules are added by ``known_codes``."""


def known_codes() -> dict[str, FindingCode]:
    """Return all codes, with those of the rules that the schemas state."""
    from reconciler.source.schema import load_schema

    found = dict(CODES)
    for name in (
        "nodepool.v1",
        "nodeclaim.v1",
        "nodeoverlay.v1alpha1",
        "ec2nodeclass.v1",
        "capacitybuffer.v1beta1",
    ):
        for rule, message in _rules(load_schema(name)):
            meaning = f"The API server rejects the object: {message.rstrip('.')}."
            found.setdefault(rule, FindingCode(meaning, "Correct the field that is shown."))
    return dict(sorted(found.items()))


def _rules(schema: object) -> Iterator[tuple[str, str]]:
    """Yield the name and message of each rule of a schema, but for rules about updates."""
    if isinstance(schema, dict):
        for rule in schema.get("x-kubernetes-validations", ()):
            if "oldSelf" not in rule["rule"]:
                yield rule["name"], rule["message"]
        for below in schema.values():
            yield from _rules(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from _rules(below)
