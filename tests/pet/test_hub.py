"""Models by names: what is here is used without a network, revisions are pinned, and failures are one line."""

from __future__ import annotations

import fnmatch
import logging
import shutil
import sys
import types
from pathlib import Path

import pytest
import yaml

from model_zoo import progress
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.compat.yaml_files import load_any
from pet.hub import BELOW, FILES, HubName, bare, fetch, hub_name
from pet.launching import heartbeat
from pet.names import bundled_models, find_model, find_tokenizer, model_config

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """A hub with one model, `tiny/llama`, and a cache on this machine; stands in for huggingface_hub."""

    def __init__(self, cache: Path, source: Path):
        self.cache, self.source, self.online, self.asked = cache, source, True, []

    def snapshot_download(self, model, revision, local_files_only, allow_patterns, ignore_patterns):
        self.asked.append((revision, "cache" if local_files_only else "network"))
        directory = self.cache / COMMIT
        if local_files_only and not directory.is_dir():
            raise FileNotFoundError("not in the cache")
        if not local_files_only:
            if not self.online:
                raise ConnectionError("Name or service not known\nand much more")
            if model != "tiny/llama" or revision not in (None, "main", COMMIT):
                raise LookupError(f"404: no {model} at {revision}")
            directory.mkdir(parents=True, exist_ok=True)
            for file in self.source.iterdir():
                if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                    shutil.copyfile(file, directory / file.name)
        return str(directory)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    for file in bundled_models()["llama_tiny"].iterdir():
        shutil.copyfile(file, tmp_path / "source" / file.name)
    for name in ("pytorch_model.bin", "modeling_own.py"):
        (tmp_path / "source" / name).write_text("code")
    found = Hub(tmp_path / "cache", tmp_path / "source")
    monkeypatch.setitem(sys.modules, "huggingface_hub", found)
    monkeypatch.chdir(tmp_path)
    return found


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Qwen/Qwen3-0.6B", ("huggingface", "Qwen/Qwen3-0.6B", None)),
        ("Qwen/Qwen3-0.6B@main", ("huggingface", "Qwen/Qwen3-0.6B", "main")),
        ("modelscope:Qwen/Qwen3-0.6B@v1.0", ("modelscope", "Qwen/Qwen3-0.6B", "v1.0")),
        ("./Qwen/Qwen3", None),
        ("~/Qwen3", None),
        ("/a/b", None),
        ("a/b/c", None),
        ("llama_tiny", None),
        ("here/llama", None),
    ],
)
def test_what_is_a_name(tmp_path, text, parts):
    (tmp_path / "here").mkdir()
    found = hub_name(text, tmp_path)
    assert found == (HubName(*parts) if parts else None)
    if found is not None:
        assert hub_name(found.pinned(COMMIT)) == found._replace(revision=COMMIT)


def test_what_is_here_needs_no_network(hub):
    directory = find_model("tiny/llama")
    names = {path.name for path in directory.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.model"} <= names
    assert not names & {"pytorch_model.bin", "modeling_own.py"}
    hub.online = False
    assert find_model("tiny/llama") == find_tokenizer("tiny/llama") == find_model(f"tiny/llama@{COMMIT}") == directory


def test_of_directories_only_that_of_chat_templates_is_fetched():
    def fetched(name):  # as huggingface_hub and modelscope filter
        allowed, ignored = (any(fnmatch.fnmatch(name, each) for each in group) for group in (FILES, BELOW))
        return allowed and not ignored

    files = ("config.json", "model-00001-of-00002.safetensors", "additional_chat_templates/tool_use.jinja")
    others = (
        "consolidated.safetensors",
        "original/model.safetensors",
        "adapter/tokenizer.json",
        "additional/config.json",
    )
    assert [name for name in (*files, *others) if fetched(name)] == [*files]


def test_a_worker_may_take_any_time_for_a_download(hub, tmp_path, monkeypatch):
    """One of more than ten seconds was taken for a hang."""
    monkeypatch.setenv(heartbeat.BEAT_FILE, str(tmp_path / "beat"))
    download, states = hub.snapshot_download, []

    def noted(*words, **settings):
        states.append(heartbeat._now[0])
        return download(*words, **settings)

    hub.snapshot_download = noted
    with heartbeat.watched():
        progress.tick()
        fetch(hub_name("tiny/llama"))
    assert states == [heartbeat.PAUSING] * 2  # the cache and the network


def test_a_configuration_alone_is_fetched_alone_and_completed_later(hub):
    assert model_config("tiny/llama")["model_type"] == "llama"
    assert [path.name for path in (hub.cache / COMMIT).iterdir()] == ["config.json"]
    assert (find_model("tiny/llama") / "model.safetensors").is_file(), "what is here is not whole"
    assert hub.asked[-2:] == [(None, "cache"), (None, "network")]


def test_a_recipe_is_pinned_to_the_revision(hub, tmp_path):
    from pet.auto import AutoModel
    from pet.recipe.loading import load

    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    text = "model: {path: tiny/llama}\nadapter: {method: lora}\ndata: {train: rows.jsonl, max_length: 64}\n"
    (tmp_path / "job.yaml").write_text(text)
    recipe = load(tmp_path / "job.yaml")
    assert recipe.model.path == recipe.model.tokenizer == f"tiny/llama@{COMMIT}"
    assert AutoModel.from_pretrained(recipe.model.path).base_name == bare(recipe.model.path) == "tiny/llama"


def test_download_asks_for_the_newest_and_says_where_it_is(hub, capsys):
    for _ in range(2):
        assert main(["download", "tiny/llama"]) == 0
        assert capsys.readouterr().out.splitlines() == [f"tiny/llama@{COMMIT}", str(hub.cache / COMMIT)]
    assert hub.asked == [(None, "network")] * 2
    assert main(["download", "llama_tiny"]) == 2
    assert "is no name on a hub; expected owner/name" in capsys.readouterr().err


def test_without_a_network_it_is_one_line(hub, capsys):
    hub.online = False
    for command in (["download", "tiny/llama"], ["info", "tiny/llama"]):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "model 'tiny/llama': no such directory here, and not to be had from huggingface: Name or" in line


def test_older_weights_are_fetched_where_there_are_no_others(hub):
    (hub.source / "model.safetensors").unlink()
    shutil.copyfile(Path(__file__).parents[1] / "fixtures/torch_save/archive.bin", hub.source / "pytorch_model.bin")
    assert (find_model("tiny/llama") / "pytorch_model.bin").is_file()
    assert [place for _, place in hub.asked] == ["cache", "network", "network"]


def test_no_weights_at_all(hub):
    for name in ("model.safetensors", "pytorch_model.bin"):
        (hub.source / name).unlink()
    with pytest.raises(InputError, match=r"model 'tiny/llama' of huggingface: .* holds no weights"):
        find_model("tiny/llama")


def test_modelscope_by_its_package(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", types.SimpleNamespace(snapshot_download=hub.snapshot_download))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert find_model("modelscope:tiny/llama@main").is_dir()
    with pytest.raises(InputError, match=r"needs the package huggingface_hub: pip install '.*\[huggingface\]'"):
        find_model("tiny/other")


def test_what_modelscope_warns_of_its_trials_is_not_shown(hub, monkeypatch, caplog):
    """Without a network it tries again and again; the error says so once, in a line of bounded length."""

    def offline(*_, **__):
        logging.getLogger("modelscope_hub.legacy_api").warning("listing failed, retry in 1s")
        raise ConnectionError("x" * 1000)

    monkeypatch.setitem(sys.modules, "modelscope", types.SimpleNamespace(snapshot_download=offline))
    with pytest.raises(InputError, match=r"not to be had from modelscope: x{200}…; without a network"):
        find_model("modelscope:tiny/llama")
    assert not caplog.records


def test_huggingfaces_own_cache(hub, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    constants = pytest.importorskip("huggingface_hub.constants")
    cache = tmp_path / "hf" / "models--tiny--llama"
    shutil.copytree(hub.source, cache / "snapshots" / COMMIT)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_model("tiny/llama") == find_model(f"tiny/llama@{COMMIT}") == cache / "snapshots" / COMMIT


@pytest.mark.parametrize(
    ("job", "revision"),
    [
        ({"model_name_or_path": "tiny/llama", "finetuning_type": "lora", "stage": "sft"}, "model_revision"),
        ({"base_model": "tiny/llama", "adapter": "lora", "lora_target_linear": True}, "revision_of_model"),
    ],
    ids=["LLaMA-Factory", "axolotl"],
)
def test_a_job_file_of_another_system_names_a_base_on_a_hub(hub, job, revision):
    (hub.source / "data.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    data = [f"data.train={hub.source / 'data.jsonl'}", "data.max_length=64"]
    for more, asked in (({}, None), ({revision: "main"}, None), ({revision: COMMIT}, COMMIT)):
        hub.asked.clear()
        Path("job.yaml").write_text(yaml.safe_dump({revision: None, **job, **more, "output_dir": "out"}))
        assert load_any(Path("job.yaml"), data).model.path == f"tiny/llama@{COMMIT}"
        assert hub.asked[0][0] == asked
