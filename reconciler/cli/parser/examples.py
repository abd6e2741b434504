"""Examples that the help of each command shows: a command line, and what it does."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "init": (
        ("init fleet --name shop --region eu-central-1", "start a new fleet"),
        ("init fleet --from karpenter/", "take over Karpenter's YAML, of any version"),
        ("init fleet --from-cluster --context production", "take over a cluster"),
    ),
    "validate": (
        ("validate fleet", "check a folder"),
        ("validate fleet -o github", "annotate a pull request"),
    ),
    "plan": (
        ("plan fleet", "plan the fleet in a folder"),
        ("plan fleet --base main -o markdown", "comment on a pull request"),
        ("plan fleet --out plan.json", "save the plan for review"),
        ("plan --repo https://github.com/acme/fleet --ref v2", "plan without a checkout"),
        ("plan fleet --scale deploy/api=40", "plan what more replicas need"),
    ),
    "watch start": (
        ("watch start --context production", "watch the Karpenter of a cluster"),
        (
            "watch start fleet --episodes misses",
            "plan with a folder's files, and save what was wrong",
        ),
    ),
    "watch report": (("watch report --since 7d", "see how often the predictions were right"),),
    "watch replay": (
        ("watch replay misses/*.json.gz", "see whether this release predicts them right"),
    ),
    "apply": (
        ("apply fleet", "show the plan, ask, and apply it"),
        ("apply plan.json fleet", "apply a plan that was reviewed"),
        ("apply fleet --auto-approve", "apply in a pipeline, without asking"),
    ),
    "run": (
        ("run fleet", "follow the commits of a checkout"),
        ("run --repo https://github.com/acme/fleet --ref main", "follow a remote branch"),
        ("run fleet --listen 127.0.0.1:8080", "serve metrics, probes and a dashboard"),
        ("run clusters --state postgresql+psycopg://db/fleets", "serve every fleet below a folder"),
    ),
    "simulate": (
        ("simulate fleet", "simulate until nothing is left to do"),
        ("simulate fleet --until 24h --seed 7", "simulate a day with another random seed"),
        ("simulate fleet --base main -o html", "compare the rollout of a change"),
        ("simulate fleet --trace week.jsonl.gz --base main", "what would last week have cost?"),
    ),
    "advise": (
        ("advise fleet", "rank the changes that save the most"),
        ("advise fleet --snapshot cluster.json --spot-max 20", "advise on a running fleet"),
        ("advise fleet --write", "write the best proposal to the fleet's files"),
        ("advise fleet --commit cheaper", "commit it to a branch, with the evidence"),
    ),
    "trace export": (
        ("trace export fleet --since 7d --out week.jsonl.gz", "the workload of the last week"),
        ("trace export fleet --anonymize --out shared.jsonl.gz", "without its names"),
    ),
    "trace import": (
        ("trace import openb.csv.gz --out week.jsonl.gz", "convert a public trace"),
        (
            "trace import --prometheus https://prometheus.example.com --out week.jsonl.gz",
            "the pods of the last week, from kube-state-metrics",
        ),
        ("trace import week.jsonl.gz --anonymize --out shared.jsonl.gz", "remove names from it"),
    ),
    "trace summary": (("trace summary week.jsonl.gz", "show what a trace contains"),),
    "status": (
        ("status fleet", "show nodes, commands and the last plan"),
        ("status fleet --watch", "show them again whenever something changes"),
    ),
    "top": (
        ("top fleet", "follow the fleet until Ctrl-C"),
        ("top fleet --node-pool web --sort cpu", "the fullest nodes of a NodePool first"),
        ("top fleet -l karpenter.sh/capacity-type=spot --once", "print its spot nodes and exit"),
    ),
    "get": (
        ("get nodes", "list nodes with price, utilization and pods"),
        ("get nodeclaim web-1a2b fleet -o yaml", "show one NodeClaim"),
        ("get nodeclaims -w", "list NodeClaims, and again whenever they change"),
    ),
    "describe": (
        ("describe node ip-10-0-0-1.ec2.internal", "show everything recorded about a node"),
        ("describe nodepool web fleet", "show a NodePool and its NodeClaims"),
    ),
    "explain": (
        ("explain pod shop/api-0", "why is this pod unschedulable?"),
        ("explain node ip-10-0-0-1.ec2.internal", "why is this node not disrupted?"),
        ("explain nodepool web fleet", "when may its nodes be disrupted?"),
        ("explain gap fleet", "what does each constraint cost?"),
        ("explain unknown-field", "what does this finding mean?"),
    ),
    "cordon": (("cordon ip-10-0-1-7.ec2.internal", "mark a node as unschedulable"),),
    "uncordon": (("uncordon ip-10-0-1-7.ec2.internal", "mark it as schedulable again"),),
    "drain": (
        ("drain ip-10-0-1-7.ec2.internal", "cordon a node and evict its pods"),
        ("drain web-1a2b fleet --dry-run", "preview the drain of a NodeClaim"),
    ),
    "delete nodeclaim": (("delete nodeclaim web-1a2b", "drain its node, terminate its instance"),),
    "delete node": (
        ("delete node ip-10-0-1-7.ec2.internal --reason 'bad disk'", "record why it is removed"),
    ),
    "overlays": (
        ("overlays fleet", "print the NodeOverlays, ready for kubectl"),
        ("overlays fleet --dry-run --context production", "compare them with those of a cluster"),
        ("overlays fleet --apply --interval 5m", "keep them up to date beside Karpenter"),
    ),
    "uninstall": (
        ("uninstall --context production", "ask, then remove the finalizer from every node"),
    ),
    "resume": (("resume fleet --node-pool web", "resume disruption in one NodePool"),),
    "history": (
        ("history fleet --limit 10", "list the last ten operations"),
        ("history --target web-1a2b -o json", "list the operations on one NodeClaim"),
    ),
    "report": (
        ("report fleet", "show the last week"),
        ("report fleet --since 30d -o html > month.html", "save the last month as a page"),
    ),
    "lock": (
        ("lock fleet", "pin what is not pinned yet"),
        ("lock fleet --update", "pin the current images and prices"),
        ("lock fleet --check", "check in a pipeline that the lock matches"),
    ),
    "ci": (
        ("ci", "plan every fleet that the pull request of this job changes"),
        ("ci clusters/shop --base origin/main --out plans", "plan one fleet against a base"),
    ),
    "comment github": (
        ("comment github plan.json", "comment in a job of GitHub Actions"),
        (
            "comment github plan.json --repository acme/fleet --pull-request 7",
            "comment from anywhere; the token is in GITHUB_TOKEN",
        ),
    ),
    "comment gitlab": (("comment gitlab plan.json", "comment in a job of GitLab CI"),),
    "check": (
        ("check fleet", "check what `apply` and `run` need"),
        ("check fleet --for plan", "check what `plan` needs"),
        ("check fleet --policy", "print the IAM policy"),
    ),
    "health": (("health --heartbeat /run/reconciler/alive", "check the daemon in a container"),),
    "hash": (("hash fleet/nodepool.yaml", "print the hashes of the objects in a file"),),
    "config": (("config fleet", "show every setting and where it comes from"),),
    "demo": (
        ("demo", "play the demo in a temporary folder"),
        ("demo --dir shop", "keep the fleet of the demo"),
    ),
    "snapshot": (
        ("snapshot --out cluster.json", "capture the cluster of the current context"),
        ("snapshot fleet --out fleet.json", "capture a fleet with its records"),
    ),
    "lsp": (("lsp --stdio", "the command that an editor starts"),),
    "completion": (
        (
            "completion bash > ~/.local/share/bash-completion/completions/reconciler",
            "install the completion for bash",
        ),
        ('completion zsh > "${fpath[1]}/_reconciler"', "install the completion for zsh"),
        (
            "completion fish > ~/.config/fish/completions/reconciler.fish",
            "install the completion for fish",
        ),
    ),
    "state migrate": (("state migrate fleet", "upgrade after installing a new release"),),
    "state check": (("state check fleet", "check the state"),),
    "state export": (("state export backup.jsonl fleet", "write a backup"),),
    "state import": (("state import backup.jsonl fleet", "restore a backup"),),
    "state prune": (("state prune fleet --keep 90d --dry-run", "show what would be removed"),),
    "state adopt": (
        ("state adopt fleet --snapshot cluster.json", "show what would be adopted"),
        ("state adopt fleet --snapshot cluster.json --yes", "adopt it"),
    ),
}
"""Command, with its subcommand → (command line without the program, what it does)."""
