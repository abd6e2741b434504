"""The files of `init` outside the fleet: workflows of a CI service, and a pre-commit entry."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final, NamedTuple

from reconciler.assembly.inputs.files import read_checkout_file
from reconciler.model.errors import UnreadableError

ACTION: Final = "reconciler/reconciler"
"""The repository with the GitHub Action, and of the GitLab component."""

_CHECKOUT: Final = "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1"

_PLAN: Final = """\
# Plans a pull request and keeps the plan as an artifact. It runs on the files of the pull request,
# so it has no secrets and no write permissions; reconciler-comment.yml posts the result.
name: reconciler plan
on:
  pull_request:
    paths: {paths}
permissions:
  contents: read
concurrency:
  group: reconciler-plan-${{{{ github.ref }}}}
  cancel-in-progress: true
jobs:
  plan:
    runs-on: ubuntu-24.04
    timeout-minutes: 15
    steps:
      - uses: {checkout}
        with:
          fetch-depth: 0
          persist-credentials: false
      - uses: {action}@{ref}
        with:
          fleets: {fleet}
"""
_COMMENT: Final = """\
# Posts the plans of reconciler-plan.yml. It runs on the files of the default branch and reads the
# artifact as data, so it can safely comment, also on pull requests from forks.
name: reconciler comment
on:
  workflow_run:
    workflows: [reconciler plan]
    types: [completed]
permissions:
  actions: read
  checks: write
  pull-requests: write
jobs:
  comment:
    if: github.event.workflow_run.event == 'pull_request'
    runs-on: ubuntu-24.04
    timeout-minutes: 10
    steps:
      - uses: {action}@{ref}
        with:
          stage: comment
          check: true
"""
_GITLAB: Final = """\
# Plans merge requests and comments on them. GITLAB_TOKEN is a project access token with
# the scope api and the role Reporter, as a masked variable.
include:
  - component: $CI_SERVER_FQDN/{action}/plan@{ref}
    inputs:
      fleets: {fleet}
"""
_PRE_COMMIT: Final = """\
# `pre-commit install` runs these before each commit.
repos:
  - repo: local
    hooks:
      - id: reconciler-validate
        name: reconciler validate
        entry: reconciler validate
        args: [{fleet}]
        language: system
        files: '{pattern}'
        pass_filenames: false
"""


class CI(StrEnum):
    """The CI service that a pull request is planned on."""

    GITHUB = "github"
    GITLAB = "gitlab"
    NONE = "none"


class RepositoryFile(NamedTuple):
    """A file of the repository; ``why_not`` is the manual step if it already exists."""

    path: str
    content: str
    why_not: str


def repository_of(folder: str) -> str | None:
    """Return the nearest git repository: ``folder`` itself or a parent."""
    path = os.path.realpath(folder)
    while True:
        if os.path.lexists(os.path.join(path, ".git")):
            return path
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above


def detect_ci(repository: str | None) -> CI:
    """Return the CI service that a repository uses by its files and remotes, else GitHub."""
    if repository is None:
        return CI.GITHUB
    if os.path.lexists(os.path.join(repository, ".gitlab-ci.yml")):
        return CI.GITLAB
    try:
        config = read_checkout_file(os.path.join(repository, ".git", "config"), repository)
    except (OSError, UnreadableError):
        return CI.GITHUB
    return CI.GITLAB if b"gitlab" in config and b"github.com" not in config else CI.GITHUB


def ci_files(ci: CI, folder: str, ref: str) -> list[RepositoryFile]:
    """Return the workflows that plan pull requests; ``folder`` is relative to the repository.

    ``ref`` names the tag or commit of the action.
    """
    match ci:
        case CI.GITHUB:
            return [
                RepositoryFile(
                    ".github/workflows/reconciler-plan.yml",
                    _PLAN.format(
                        paths=('["**"]' if folder == "." else f"[{_quote(folder + '/**')}]"),
                        fleet=_quote(folder),
                        checkout=_CHECKOUT,
                        action=ACTION,
                        ref=ref,
                    ),
                    "compare it with the one in docs/pull-requests.md",
                ),
                RepositoryFile(
                    ".github/workflows/reconciler-comment.yml",
                    _COMMENT.format(action=ACTION, ref=ref),
                    "compare it with the one in docs/pull-requests.md",
                ),
            ]
        case CI.GITLAB:
            return [
                RepositoryFile(
                    ".gitlab-ci.yml",
                    _GITLAB.format(action=ACTION, fleet=_quote(folder), ref=ref),
                    f"include the component {ACTION}/plan with the input fleets: {folder}",
                )
            ]
        case CI.NONE:
            return []


def pre_commit_file(folder: str) -> RepositoryFile:
    """Return the configuration of pre-commit that validates the fleet before each commit."""
    import re

    pattern = r"\.(ya?ml|json|lock)$" if folder == "." else f"^{re.escape(folder)}/"
    return RepositoryFile(
        ".pre-commit-config.yaml",
        _PRE_COMMIT.format(fleet=_quote(folder), pattern=pattern.replace("'", "''")),
        f"add a local hook that runs `reconciler validate {folder}`",
    )


def _quote(text: str) -> str:
    """Return a text in YAML's double quotes."""
    import json

    return json.dumps(text)
