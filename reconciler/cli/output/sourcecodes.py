"""What the codes of findings of `init` and on the sources of a fleet mean, and what to do."""

from __future__ import annotations

from typing import Final

SOURCE_CODES: Final = {
    "left-out": ("`init` did not take over an object.", "The message states the reason."),
    "migrated": (
        "`init` changed an object while it migrated it.",
        "Review what has no successor.",
    ),
    "template": (
        "A file contains placeholders, such as ${CLUSTER_NAME}.",
        "Fill them in, or take over the rendered file.",
    ),
    "ambiguous-source": (
        "Several overlays share a base, and none of them is named.",
        "Pass the folder of one, or name it under sources in reconciler.yaml.",
    ),
    "ambiguous-workloads": (
        "Several overlays without nodes share a base, and none of them is named.",
        "Pass the folder of one, or name it under sources in reconciler.yaml.",
    ),
    "empty-chart": (
        "A Helm chart has templates of nodes and makes none with the values that it is given.",
        "Name the values under sources in reconciler.yaml, or pass the output of `helm template`.",
    ),
    "auto-mode": (
        "Node classes of EKS Auto Mode are not supported: AWS launches their nodes.",
        "Write an EC2NodeClass; `reconciler init --from` converts one.",
    ),
    "missing-dependency": (
        "A dependency of a Helm chart is not in its folder charts/.",
        "Run `helm dependency build`, and commit charts/.",
    ),
    "missing-source": ("A source refers to something that does not exist.", "Correct the path."),
    "missing-tool": (
        "kustomize or Helm is needed to render a source, and cannot be used.",
        "Install it, name it in RECONCILER_KUSTOMIZE or RECONCILER_HELM, or use -f.",
    ),
    "name-reference": (
        "kustomize has renamed an EC2NodeClass, and the NodePools still refer to its old name.",
        "Add the nameReference configuration that the message shows.",
    ),
    "outside-source": (
        "A source refers to a file outside the repository.",
        "Refer only to files of the repository.",
    ),
    "placeholder": (
        "A value is a placeholder that nothing fills.",
        "Write its value, or set clusterName and aws.region.",
    ),
    "plugin-source": (
        "Rendering a source would run a plugin, a function or a program.",
        "Use what kustomize has built in, or pass rendered YAML with -f.",
    ),
    "remote-source": (
        "A source is in another repository or registry; nothing is downloaded.",
        "Vendor it with the command that the message shows.",
    ),
    "render-failed": (
        "kustomize or Helm could not render a source.",
        "The message is the tool's own; correct the source.",
    ),
    "unknown-variables": (
        "Variables of a source come from an object that is not in the repository.",
        "Add them to the source, or to the repository.",
    ),
    "unlisted-file": (
        "A file is in the folder of a kustomization that does not list it, so it is not read.",
        "List it under resources, or move it.",
    ),
}
