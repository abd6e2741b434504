"""Attacks by which a repository makes kustomize or Helm run programs, connect, or read files."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.git.trees import FolderTree
from reconciler.adapters.rendering.isolation import RunLimits, run_isolated
from reconciler.adapters.rendering.tools import CommandLineRenderer
from reconciler.cli.main import main
from reconciler.desired.sources.requested import Tool
from reconciler.desired.sources.tree import files_below
from reconciler.ports.rendering import RenderBuild, RenderError
from tests.cli.sourcefolders import BASE, CHART, CLASS, POOL, below, write
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon

needs_kustomize = pytest.mark.skipif(
    shutil.which("kustomize") is None and shutil.which("kubectl") is None,
    reason="neither kustomize nor kubectl is installed",
)
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
SECRET = "s3cret-of-the-user"


class Listener:
    """A server on this machine that records every connection."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    server = Listener()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, beside a file with a secret of the user."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    folder = tmp_path / "outer" / "work"
    folder.mkdir(parents=True)
    (tmp_path / "secret.yaml").write_text(POOL.replace("general", SECRET))
    (folder / ".git").mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    monkeypatch.chdir(folder)
    return folder


def findings(capsys: pytest.CaptureFixture[str], path: str = ".") -> list[dict[str, Any]]:
    main(["validate", path, "-o", "json"])
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    found: list[dict[str, Any]] = json.loads(out)["diagnostics"]
    return found


def render(tool: Tool, files: dict[str, str], limits: RunLimits | None = None) -> str:
    """Render files as the tool gets them if nothing was refused before."""
    renderer = CommandLineRenderer(limits=limits or RunLimits())
    content = {name: text.encode() for name, text in files.items()}
    return renderer.render(RenderBuild(tool, content, ".")).decode()


@needs_kustomize
@attack(Threat.RENDERING, "a remote base that makes kustomize connect to a server")
@pytest.mark.parametrize("field", ["resources", "bases", "components", "crds", "configurations"])
@pytest.mark.parametrize("form", ["http://127.0.0.1:{}/a.yaml", "git::http://127.0.0.1:{}/a//b"])
def test_a_remote_base_is_refused_before_the_tool_starts(
    field: str, form: str, work: Path, listener: Listener, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, BASE | {"kustomization.yaml": f"{field}: ['{form.format(listener.port)}']\n"})
    found = findings(capsys)[0]
    assert found["code"] == "unread-source"  # no node depends on it
    assert f"127.0.0.1:{listener.port}" in found["message"]
    assert listener.connections == 0


@needs_kustomize
@attack(Threat.RENDERING, "a remote base that reaches kustomize all the same")
def test_the_tool_has_no_network(listener: Listener) -> None:
    url = f"http://127.0.0.1:{listener.port}/pool.yaml"
    with pytest.raises(RenderError):
        render(Tool.KUSTOMIZE, {"kustomization.yaml": f"resources: ['{url}']\n"})
    words = ["--user", "--map-current-user", "--net", "--", "/bin/sh", "-c", ":"]
    program = shutil.which("unshare", path="/usr/bin:/bin")
    if program is None or subprocess.run([program, *words], check=False).returncode:
        pytest.skip("this machine does not allow network namespaces")
    assert listener.connections == 0


@needs_kustomize
@attack(Threat.RENDERING, "a file above or outside a kustomization, without the checks before it")
@pytest.mark.parametrize("field", ["files: [{}]", "envs: [{}]", "literals: [], files: [a={}]"])
@pytest.mark.parametrize("place", ["../secret.txt", "{outside}"])
def test_the_load_restrictor_holds_alone(field: str, place: str, tmp_path: Path) -> None:
    """Guard: ``--load-restrictor LoadRestrictionsRootOnly``. The copy holds the first file."""
    (tmp_path / "outside.txt").write_text(f"a={SECRET}\n")
    path = place.format(outside=tmp_path / "outside.txt")
    source = f"{{name: a, {field.format(path)}}}"
    files = {
        "base/kustomization.yaml": f"configMapGenerator: [{source}]\n",
        "secret.txt": f"a={SECRET}\n",
    }
    content = {name: text.encode() for name, text in files.items()}
    with pytest.raises(RenderError, match="security") as caught:
        CommandLineRenderer().render(RenderBuild(Tool.KUSTOMIZE, content, "base"))
    assert SECRET not in str(caught.value)


FUNCTION = """\
apiVersion: example.com/v1
kind: Evil
metadata:
  name: evil
  annotations:
    config.kubernetes.io/function: "exec: {path: ./evil.sh}"
"""


@needs_kustomize
@attack(Threat.RENDERING, "a generator, transformer or validator that is a program")
@pytest.mark.parametrize("field", ["generators", "transformers", "validators"])
@pytest.mark.parametrize("is_inline", [True, False])
def test_a_function_does_not_run(
    field: str, is_inline: bool, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"#!/bin/sh\ntouch {tmp_path}/ran\n"
    inline = json.dumps(FUNCTION)
    entry = inline if is_inline else "evil.yaml"
    files = {"kustomization.yaml": f"resources: [base]\n{field}: [{entry}]\n", "evil.sh": script}
    write(work, BASE | files | {"evil.yaml": FUNCTION})
    (work / "evil.sh").chmod(0o755)
    assert "plugin-source" in [f["code"] for f in findings(capsys)]
    with pytest.raises(RenderError):
        render(Tool.KUSTOMIZE, {**BASE, **files, "evil.yaml": FUNCTION})
    assert not (tmp_path / "ran").exists()


@needs_kustomize
@attack(Threat.RENDERING, "a built-in plugin of kustomize that runs Helm or reads other files")
@pytest.mark.parametrize(
    "plugin",
    [
        (
            "apiVersion: builtin\nkind: HelmChartInflationGenerator\nmetadata: {name: x}\n"
            "name: x\nrepo: http://127.0.0.1:1\n"
        ),
        (
            "apiVersion: builtin\nkind: ConfigMapGenerator\nmetadata: {name: x}\n"
            "files: [../../../secret.yaml]\n"
        ),
        "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: x}\npath: /etc/passwd\n",
    ],
)
def test_a_built_in_plugin_reads_only_the_copy(
    plugin: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    field = "transformers" if "Transformer" in plugin else "generators"
    files = {"kustomization.yaml": f"resources: [base]\n{field}: [x.yaml]\n", "x.yaml": plugin}
    write(work, BASE | files)
    assert {f["code"] for f in findings(capsys)} & {"render-failed", "plugin-source"}


@attack(Threat.RENDERING, "a program called kustomize or helm in the repository")
@pytest.mark.parametrize("name", ["kustomize", "helm", "kubectl"])
def test_a_tool_in_the_repository_is_not_used(
    name: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write(work, below("a", BASE) | below("b", CHART) | {name: f"#!/bin/sh\ntouch {tmp_path}/ran\n"})
    (work / name).chmod(0o755)
    for path in (".", "", str(work), f"{work}/../work"):
        monkeypatch.setenv("PATH", f"{path}:/nowhere")
        assert "missing-tool" in [f["code"] for f in findings(capsys)]
    assert not (tmp_path / "ran").exists()


@needs_kustomize
@attack(Threat.RENDERING, "a path or link in a kustomization that leads out of the repository")
@pytest.mark.parametrize(
    "line",
    [
        "resources: [../../secret.yaml]",
        "resources: [link.yaml]",
        "resources: [linked]",
        "patches: [{path: ../../secret.yaml}]",
        "configMapGenerator: [{name: x, files: [../../secret.yaml]}]",
        "configMapGenerator: [{name: x, files: ['a=/etc/passwd']}]",
        "secretGenerator: [{name: x, envs: [../../secret.yaml]}]",
        "openapi: {path: ../../secret.yaml}",
        "replacements: [{path: ../../secret.yaml}]",
    ],
)
def test_a_kustomization_does_not_read_outside_the_repository(
    line: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (work / "linked").symlink_to(tmp_path)
    write(work, {"kustomization.yaml": line + "\n"})
    assert "outside-source" in [f["code"] for f in findings(capsys)] or line.endswith("linked]")


@needs_helm
@attack(Threat.RENDERING, "a link in a chart that leads out of the repository")
def test_a_chart_does_not_follow_a_link(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, below("chart", CHART))
    (work / "chart" / "templates" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    assert "outside-source" in [f["code"] for f in findings(capsys)]


NOT_A_NAME = ["../../../../evil", "..", ".", "", "a/../../../x", "/etc/x", "x\0y", "a/b"]


@needs_helm
@attack(Threat.RENDERING, "a dependency whose name leads out of the folder of charts")
@pytest.mark.parametrize("name", NOT_A_NAME)
def test_the_name_of_a_dependency_is_not_a_path(
    name: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would replace the chart itself, or be written outside the copy."""
    repository = {"name": name, "version": "1.0.0", "repository": "file://../other"}
    declared = f"dependencies: [{json.dumps(repository)}]\n"
    other = below("other", {"Chart.yaml": CHART["Chart.yaml"], "templates/evil.yaml": "evil"})
    write(work, below("chart", CHART | {"Chart.yaml": CHART["Chart.yaml"] + declared}) | other)
    found = [f for f in findings(capsys) if str(f["file"]).startswith("chart/")]
    (failed,) = [f["message"] for f in found if f["code"] == "render-failed"]
    assert "missing in charts/" in failed
    assert not [path for path in tmp_path.rglob("*evil*") if "other" not in path.parts]


@attack(Threat.RENDERING, "paths that would be written outside the copy, or cannot be written")
@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "x\0y", "x" * 300, "a/b", "."])
def test_a_copy_is_written_inside_its_folder(path: str, tmp_path: Path) -> None:
    program = tmp_path / "helm"
    program.write_text('#!/bin/sh\necho "v3.18.0"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    build = RenderBuild(Tool.HELM, {"a": b"", path: b"evil"}, ".")
    with pytest.raises(RenderError, match=r"leads out|cannot be copied"):
        CommandLineRenderer({Tool.HELM: str(program)}).render(build)


@needs_helm
@attack(Threat.RENDERING, "a text with a zero byte where a tool has a path or an argument")
@pytest.mark.parametrize(
    "helm", [{"parameters": [{"name": "a", "value": "x\0y"}]}, {"valueFiles": ["x\0y"]}]
)
def test_a_zero_byte_is_a_finding(
    helm: dict[str, Any], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"repoURL": "x", "path": "chart", "helm": helm}
    application = {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "a"},
        "spec": {"destination": {"namespace": "a"}, "source": source},
    }  # fmt: skip
    write(work, below("chart", CHART) | {"app.json": json.dumps(application)})
    assert {f["code"] for f in findings(capsys)} & {"render-failed", "outside-source"}


def archive(members: dict[str, bytes], empty_bytes: int = 0) -> bytes:
    """Return a packed chart with these files, and one of zeros."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        for name, text in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(text)
            packed.addfile(about, io.BytesIO(text))
        if empty_bytes:
            about = tarfile.TarInfo("sub/files/zeros")
            about.size = empty_bytes
            with open("/dev/zero", "rb") as zeros:
                packed.addfile(about, zeros)
    return content.getvalue()


SUBCHART = {"sub/Chart.yaml": b"apiVersion: v2\nname: sub\nversion: 1.0.0\n"}


@needs_helm
@attack(Threat.RENDERING, "a packed dependency that unpacks without end, or outside its chart")
@pytest.mark.parametrize("kind", ["bomb", "parent", "absolute", "link", "not packed"])
def test_a_packed_dependency_stays_in_the_copy_and_its_limits(
    kind: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "slipped"
    content = {
        "bomb": lambda: archive(SUBCHART, 2**28),
        "parent": lambda: archive(SUBCHART | {"sub/../../../../slipped": b"x"}),
        "absolute": lambda: archive(SUBCHART | {str(outside): b"x"}),
        "link": lambda: archive(SUBCHART),
        "not packed": lambda: b"\x1f\x8b" + b"x" * 1000,
    }[kind]()
    write(work, below("chart", CHART))
    (work / "chart" / "charts").mkdir()
    place = work / "chart" / "charts" / "sub-1.0.0.tgz"
    if kind == "link":
        (tmp_path / "secret.tgz").write_bytes(content)
        place.symlink_to(tmp_path / "secret.tgz")
    else:
        place.write_bytes(content)
    with soon(800):
        codes = {f["code"] for f in findings(capsys)}
    if kind != "absolute":  # helm ignores what is outside the chart's folder
        assert codes & {"render-failed", "outside-source"}
    assert not list(tmp_path.rglob("slipped"))


@needs_helm
@attack(Threat.RENDERING, "a pipe, a device or a sparse file in a chart")
@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "sparse"])
def test_what_is_not_a_small_file_is_not_copied(
    kind: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, below("chart", CHART))
    place = work / "chart" / "templates" / "odd.yaml"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "sparse":
        with place.open("wb") as file:
            file.truncate(2**34)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else "../..")
    codes = {f["code"] for f in findings(capsys)}
    expected = {"device": "outside-source", "sparse": "too-large", "loop": "too-large"}
    assert kind == "pipe" or codes & {expected[kind], "too-deep", "render-failed"}


@needs_helm
@attack(Threat.RENDERING, "a template that reads files, variables or the cluster")
@pytest.mark.parametrize(
    "text",
    [
        '{{ .Files.Get "../../../secret.yaml" }}',
        '{{ .Files.Get "/etc/passwd" }}',
        '{{ range $path, $_ := .Files.Glob "../../**" }}{{ $path }}{{ end }}',
        '{{ (lookup "v1" "Secret" "default" "x") | toJson }}',
        '{{ getHostByName "localhost" }}',
    ],
)
def test_a_template_sees_only_its_chart(
    text: str, listener: Listener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "kubeconfig"
    server = f"https://127.0.0.1:{listener.port}"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n"
        f"clusters: [{{name: a, cluster: {{server: '{server}'}}}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    line = f"kind: X\napiVersion: v1\nmetadata: {{name: x}}\nfound: '{text}'\n"
    out = render(Tool.HELM, {"Chart.yaml": CHART["Chart.yaml"], "templates/x.yaml": line})
    assert SECRET not in out
    assert "root:" not in out
    found = out.partition("found: ")[2].strip().strip("'")
    assert found in ("", "{}", "map[]")
    assert listener.connections == 0


@attack(Threat.RENDERING, "a variable of this process that a rendered file asks for")
@needs_kustomize
def test_a_tool_has_no_variables_of_this_process() -> None:
    files = {
        "kustomization.yaml": "configMapGenerator: [{name: x, envs: [x.env]}]\n",
        "x.env": "AWS_SECRET_ACCESS_KEY\nHOME\n",
    }
    out = render(Tool.KUSTOMIZE, files)
    assert SECRET not in out
    assert str(Path.home()) not in out.replace(os.sep + "root" + os.sep, "")


@needs_helm
@attack(Threat.RENDERING, "a name in an Argo CD or Flux object that Helm would take as an option")
def test_a_release_name_is_never_an_option(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = work / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    application = {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
        "metadata": {"name": f"--post-renderer={script}"},
        "spec": {
            "destination": {"namespace": f"--post-renderer={script}"},
            "source": {
                "repoURL": "x", "path": "chart",
                "helm": {
                    "releaseName": f"--post-renderer={script}",
                    "valueFiles": ["../../../secret.yaml"],
                    "parameters": [{"name": f"--post-renderer={script}", "value": "x"}],
                },
            },
        },
    }  # fmt: skip
    write(work, below("chart", CHART) | {"app.json": json.dumps(application)})
    assert findings(capsys)
    del application["spec"]["source"]["helm"]["valueFiles"]  # type: ignore[index]
    write(work, {"app.json": json.dumps(application)})
    findings(capsys)
    assert not (tmp_path / "ran").exists()


BOMBS = {
    "a loop that prints": '{{ range $i := until 100000 }}{{ repeat 100000 "x" }}{{ end }}',
    "a text that doubles": "{{ $x := `x` }}{{ range until 60 }}{{ $x = print $x $x }}{{ end }}"
    "{{ $x }}",
    "a loop that only takes time": "{{ range $i := until 100000 }}{{ range $j := until 100000 }}"
    "{{ end }}{{ end }}",
}


@needs_helm
@attack(Threat.RENDERING, "a template that takes all time, memory or output")
@pytest.mark.parametrize("name", BOMBS)
def test_a_template_bomb_ends_at_a_limit(name: str) -> None:
    files = {"Chart.yaml": CHART["Chart.yaml"], "templates/x.yaml": f"x: {BOMBS[name]}\n"}
    limits = RunLimits(seconds=2, output_max=2**20, memory_kib=3 * 2**20)
    start = time.monotonic()
    with pytest.raises(RenderError) as raised:
        render(Tool.HELM, files, limits)
    assert time.monotonic() - start < 30
    assert "\n" not in raised.value.message


@attack(
    Threat.RENDERING, "a tool that exceeds one limit only, or gets an argument with a zero byte"
)
@pytest.mark.parametrize(
    ("script", "limits", "message"),
    [
        ("yes", RunLimits(output_max=2**20), "sh printed more than 1 MiB"),
        ("exec sleep 60", RunLimits(seconds=1), "sh took longer than 1 s"),
        ("echo a\0b", RunLimits(), "sh cannot be started: "),
    ],
)
def test_each_limit_of_a_tool_ends_it_alone(
    script: str, limits: RunLimits, message: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    with pytest.raises(RenderError, match=message):
        run_isolated(
            ["/bin/sh", "-c", script], folder=str(tmp_path),
            environment={"PATH": "/usr/bin:/bin"}, limits=limits,
        )  # fmt: skip
    assert time.monotonic() - began < 30


@attack(Threat.RENDERING, "hundreds of sources that each take nearly the time of one")
def test_all_sources_together_have_a_limit_of_time(tmp_path: Path) -> None:
    helm = tmp_path / "helm"
    helm.write_text('#!/bin/sh\ncase $1 in version) echo v3.16.0;; *) echo "kind: A";; esac\n')
    helm.chmod(0o755)
    renderer = CommandLineRenderer({Tool.HELM: str(helm)}, limits=RunLimits(total_seconds=0))
    build = RenderBuild(Tool.HELM, {"chart/Chart.yaml": b"name: a\n"}, "chart")
    assert renderer.render(build) == b"kind: A\n"
    with pytest.raises(RenderError, match="all sources together took longer than 0 s"):
        renderer.render(build)


@attack(Threat.RENDERING, "a tool that writes a file without end")
def test_a_file_of_a_tool_has_a_limit(tmp_path: Path) -> None:
    script = "head -c 10000000 /dev/zero > file; exit 0"
    run_isolated(
        ["/bin/sh", "-c", script], folder=str(tmp_path),
        environment={"PATH": "/usr/bin:/bin"}, limits=RunLimits(file_blocks=1_000),
    )  # fmt: skip
    assert (tmp_path / "file").stat().st_size <= 1_000 * 1024


@attack(Threat.RENDERING, "more files, or larger ones, than a tool is given")
def test_the_size_of_a_copy_is_limited(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(work, below("chart", CHART))
    for number in range(9):
        (work / "chart" / f"{number}.bin").write_bytes(b"x" * (4 * 2**20 - 1))
    assert "too-large" in [f["code"] for f in findings(capsys)]


@needs_kustomize
@attack(Threat.RENDERING, "kustomizations that refer to each other in a circle")
def test_a_circle_of_kustomizations_ends(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(work, {f"{a}/kustomization.yaml": f"resources: [../{b}]\n" for a, b in ("ab", "ba")})
    write(work, {"reconciler.yaml": "sources: [{kustomization: a}]\n"})
    assert "render-failed" in [f["code"] for f in findings(capsys)]


@attack(Threat.RENDERING, "a source that reconciler.yaml names outside the repository")
@pytest.mark.parametrize("kind", ["folder", "kustomization", "chart", "gitops"])
@pytest.mark.parametrize("path", ["../..", "/etc", "linked"])
def test_a_listed_source_stays_in_the_repository(
    kind: str, path: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "linked").symlink_to(tmp_path)
    write(work, {"reconciler.yaml": f"sources: [{{{kind}: {path}}}]\n", "a.yaml": CLASS})
    assert "outside-source" in [f["code"] for f in findings(capsys)]


@attack(Threat.SECRETS, "git's own folder in other letters, where a file system ignores their case")
@pytest.mark.parametrize("name", [".git", ".GIT", ".Git"])
def test_no_source_reads_the_folder_of_git(
    name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``is_git_folder``. The names differ where this test runs."""
    (work / name).mkdir(exist_ok=True)
    (work / name / "token.yaml").write_text(POOL.replace("general", SECRET))
    write(work, BASE | {"kustomization.yaml": f"resources: [base, {name}/token.yaml]\n"})
    assert "outside-source" in [f["code"] for f in findings(capsys)]
    tree = FolderTree(str(work))
    assert not [path for path in files_below(tree, ".") if path.casefold().startswith(".git")]


GENERATOR = (
    "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: all}\n"
    "spec:\n  generators: [{git: {repoURL: x, %s}}]\n  template:\n    metadata: {name: 'x'}\n"
    "    spec: {source: {repoURL: x, path: '{{path.path}}'}}\n"
)


@attack(Threat.RENDERING, "a generator that lists files outside, or very many")
@pytest.mark.parametrize("form", ["directories: [{path: '**'}]", "files: [{path: '**/*.yaml'}]"])
def test_a_generator_ends_at_a_link_that_leads_out_and_at_its_limit(
    form: str,
    work: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(work, {"all.yaml": f"{POOL}---\n{CLASS}", "set.yaml": GENERATOR % form, "a/b.yaml": ""})
    (work / "a" / "linked").symlink_to(tmp_path)
    found = findings(capsys)
    assert SECRET not in json.dumps(found)
    assert {f["code"] for f in found} >= {"outside-source"}
    (work / "a" / "linked").unlink()
    for module in ("tree", "work"):
        monkeypatch.setattr(f"reconciler.desired.sources.{module}.LISTED_MAX", 0)
    (large,) = [f for f in findings(capsys) if f["code"] == "too-large"]
    assert "more than 0" in large["message"]
