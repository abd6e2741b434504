"""The endings of files that objects are made from, which no plan reads.

`init --from` takes objects out of Terraform, templates and scripts; no program is run.
"""

from typing import Final

TERRAFORM: Final = ".tf"
TERRAFORM_TEMPLATES: Final = (".tftpl", ".tpl", ".tmpl")
OTHER_TEMPLATES: Final = (".j2", ".gotmpl", ".template")
"""Endings of templates of Ansible, of gomplate and of envsubst."""
SCRIPTS: Final = (".sh", ".bash", ".zsh")
TAKEN_OVER: Final = (TERRAFORM, *TERRAFORM_TEMPLATES, *OTHER_TEMPLATES, *SCRIPTS)
"""Endings of files in which `init --from` looks for objects."""
_CONFIGURATION: Final = (".cue", ".jsonnet", ".libsonnet")
PROGRAMS: Final = (".ts", ".js", ".py", ".go", ".cs", ".java", *_CONFIGURATION)
GENERATORS: Final = (TERRAFORM, *TERRAFORM_TEMPLATES, *OTHER_TEMPLATES, *_CONFIGURATION)
"""Endings of files that hardly do anything but make objects and the like."""
