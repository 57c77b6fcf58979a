"""Models on the hub, played by a folder: what is sent, what is fetched, and what is said when it fails."""

from __future__ import annotations

import fnmatch
import shutil
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors

import rdlm
from rdlm.api import publish
from rdlm.api.language_model import LanguageModel
from rdlm.cli import main as cli
from rdlm.config import ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import Characters
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods.rdlm import Rdlm
from rdlm.storage.measurements import fingerprint


def tiny() -> LanguageModel:
    config = RunConfig(process=ProcessConfig(levels=8, pairs=64), model=TransformerConfig(width=16, layers=1, heads=2))
    method = Rdlm(config, 3)
    about = {"kind": "text", "length": 8, "protocol": "toy", "classes": [], "signal": False, "image": None}
    return LanguageModel("tiny", method, Characters("abc"), config, about)


class Hub:
    """A folder in place of the hub, with the three calls that are made to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.created, self.fetched = folder, [], []  # type: ignore[var-annotated]

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> huggingface_hub.RepoUrl:
        self.created.append((repo_id, private, exist_ok))
        (self.folder / repo_id).mkdir(parents=True, exist_ok=True)
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, commit_message: str, delete_patterns: list[str]
    ) -> None:
        for name in delete_patterns:
            (self.folder / repo_id / name).unlink(missing_ok=True)
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)

    def snapshot_download(
        self,
        repo_id: str,
        *,
        local_dir: Path,
        allow_patterns: list[str],
        library_name: str,
        library_version: str,
    ) -> str:
        if not (self.folder / repo_id).is_dir():
            raise errors.RepositoryNotFoundError("nothing there", response=answer(404))
        for file in sorted((self.folder / repo_id).iterdir()):
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                local_dir.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, local_dir / file.name)
                self.fetched.append(file.name)
        return str(local_dir)


def answer(code: int) -> httpx2.Response:
    return httpx2.Response(code, request=httpx2.Request("GET", "https://huggingface.co/api"))


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tmp_path / "hub")
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    for name in ("create_repo", "upload_folder", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, getattr(found, name))
    return found


def test_what_is_pushed_is_what_is_loaded(online: Hub, tmp_path: Path) -> None:
    model = tiny()
    assert model.push_to_hub("somebody/letters", private=True, dtype="bfloat16") == (
        "https://huggingface.co/somebody/letters"
    )
    assert online.created == [("somebody/letters", True, True)]
    again = rdlm.load("somebody/letters")
    assert again.name == "somebody/letters" and again.folder == tmp_path / "cache" / "hub" / "somebody" / "letters"
    again.save(tmp_path / "copy")
    rounded = rdlm.load(model.save(tmp_path / "half", dtype="bfloat16"))
    assert fingerprint(again.method.network) == fingerprint(rounded.method.network)
    card = (online.folder / "somebody" / "letters" / "README.md").read_text()
    assert 'rdlm.load("somebody/letters")' in card and "have not been evaluated" in card


def test_only_our_files_are_fetched_and_the_newest(online: Hub) -> None:
    model = tiny()
    model.push_to_hub("somebody/letters")
    (online.folder / "somebody" / "letters" / "pytorch_model.bin").write_bytes(b"\x80\x04")
    first = rdlm.load("somebody/letters")
    assert set(online.fetched) <= set(publish.FILES) and online.fetched[0] == "config.json"
    next(iter(model.method.network.parameters())).data.add_(1)
    model.push_to_hub("somebody/letters")
    assert fingerprint(rdlm.load("somebody/letters").method.network) == fingerprint(model.method.network)
    assert fingerprint(first.method.network) != fingerprint(model.method.network)


def test_a_stale_curve_leaves_the_hub(online: Hub) -> None:
    model = tiny()
    model.push_to_hub("somebody/letters")
    stale = online.folder / "somebody" / "letters" / "curve.json"
    stale.write_text("{}")
    model.push_to_hub("somebody/letters")
    assert not stale.exists()


def test_models_of_other_libraries_are_refused_before_their_weights_move(online: Hub) -> None:
    place = online.folder / "somebody" / "gpt"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(InputError, match=r"somebody/gpt on the hub is not a model of rdlm: it has no config.json"):
        rdlm.load("somebody/gpt")
    (place / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(InputError, match="another library's"):
        rdlm.load("somebody/gpt")
    assert "model.safetensors" not in online.fetched


def test_a_damaged_download_is_named(online: Hub) -> None:
    tiny().push_to_hub("somebody/letters")
    (online.folder / "somebody" / "letters" / "model.safetensors").write_bytes(b"")
    with pytest.raises(DamagedFileError, match="download the model again"):
        rdlm.load("somebody/letters")


def test_an_answer_that_is_not_json_is_named(online: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def html(*_: object, **__: object) -> None:
        raise ValueError("Expecting value: line 1 column 1 (char 0)")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", html)
    with pytest.raises(InputError, match="the hub's answer was not understood"):
        rdlm.load("somebody/letters")


def test_names_and_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert publish.is_hub_name("user/name") and publish.is_hub_name("a-b/c.d_e1")
    for text in ("name", "a/b/c", "./a/b", "../b", "~/b", "/a/b", "a/", "-a/b", "a/b--c", "a/..", "a/" + 96 * "b"):
        assert not publish.is_hub_name(text), text
    (tmp_path / "user").mkdir()
    assert not publish.is_hub_name("user/name")
    with pytest.raises(InputError, match="user/name is not a folder"):
        rdlm.load("user/name")
    with pytest.raises(InputError, match=r"text9 is not a folder.*did you mean text8\?"):
        rdlm.load("text9")
    with pytest.raises(InputError, match=r"a text is given with --prompt"):
        rdlm.load("the history of")
    with pytest.raises(InputError, match="'letters' is not a name on the hub"):
        tiny().push_to_hub("letters")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.RepositoryNotFoundError("no", response=answer(404)), "no such model.*check the name.*hf auth login"),
        (errors.HfHubHTTPError("no", response=answer(403)), "status 403; log in.*permissions"),
        (errors.HfHubHTTPError("no", response=answer(503)), "status 503; try again later"),
        (errors.LocalTokenNotFoundError("no"), "not logged in"),
        (httpx2.ConnectError("no route"), r"unreachable \(no route\); check the connection"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_refusals_say_what_to_do(online: Hub, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for name in ("create_repo", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, refuse)
    with pytest.raises(InputError, match=f"is not a folder.*{message}"):
        rdlm.load("somebody/letters")
    with pytest.raises(InputError, match=f"not pushed.*{message}"):
        tiny().push_to_hub("somebody/letters")


def test_offline_uses_the_cache_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library itself, in its offline mode, in which all tests run."""
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    assert cli.main(["generate", "somebody/letters"]) == 2
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"not pushed.*HF_HUB_OFFLINE is set"):
        tiny().push_to_hub("somebody/letters")
    publish.write(tiny(), tmp_path / "hub" / "somebody" / "letters", name="somebody/letters")
    assert rdlm.load("somebody/letters").name == "somebody/letters"


def test_publish_pushes(online: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tiny().save(tmp_path / "out")
    assert cli.main(["publish", str(place), "somebody/letters", "--private"]) == 0
    assert capsys.readouterr().out.strip() == "https://huggingface.co/somebody/letters"
    assert online.created == [("somebody/letters", True, True)]
