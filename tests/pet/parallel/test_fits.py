"""Layouts that cannot be: one line, before any process is started."""

import pytest

import pet
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig
from model_zoo.auto import AutoModel
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from model_zoo.families import PRESETS
from model_zoo.families.llama import LlamaConfig
from model_zoo.quantization import Quantization
from pet.cli.main import main
from pet.meta_model import MetaModel
from pet.names import find_recipe
from pet.parallel.collectives import Group
from pet.parallel.fits import check_fits
from pet.parallel.gathered import shard_base
from pet.parallel.mesh import Mesh
from pet.parallel.shares import shares
from pet.parallel.specs import ShardSpecs
from pet.parallel.split import PARTIAL, SPLIT, WHOLE, Division
from pet.parallel.stages import cut_stage
from pet.quantize import quantize_checkpoint
from pet.recipe import load


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("parallel.tensor=3", "4 attention heads cannot be divided evenly over 3 workers; possible are 1, 2, 4"),
        ("parallel.pipeline=8 parallel.micro_batches=8 train.batch_size=8", "8 stages for 4 layers"),
        ("parallel.tensor=2 train.optimizer=lamb", "possible are adamw, adam, sgd, momentum, lion, or parallel"),
        (
            "parallel.pipeline=2 parallel.micro_batches=2 adapter={method: prompt}",
            "adapter.method 'prompt' acts on the whole model",
        ),
        (
            "parallel.pipeline=2 parallel.micro_batches=2 adapter={method: prefix, projection: true}",
            "a projection that all layers share",
        ),
        (
            "parallel.tensor=2 adapter={method: adapter, placement: parallel}",
            "Bottleneck beside transformer.layers.0.mlp cannot be divided; place it behind (houlsby)",
        ),
        ("parallel.tensor=2 adapter={method: adapter, targets: query_key_value}", "Bottleneck on transformer.layers.0"),
        ("parallel.tensor=2 adapter={method: lora, targets: nothing}", "'nothing' matches no"),
        ("parallel.data=5 train.batch_size=5 parallel.shard_base=true", "over 5 replicas; possible are 1, 2, 3, 4, 6"),
        ("parallel.data=2 parallel.shard_base=true adapter={method: dora}", "reads whole matrices"),
        ("parallel.data=2 parallel.shard_base=true adapter={method: none}", "every weight is trained"),
        ("parallel.data=2 parallel.shard_base=true model.quantization.type=nf4", "packed weights are not gathered"),
        ("parallel.data=3", "4 rows cannot be divided over 3 copies"),
        (
            "parallel.pipeline=2 parallel.micro_batches=2 adapter={method: lora, layers: [0]}",
            "a stage would have nothing to train; of layers 2 to 3 nothing is",
        ),
        ("parallel.pipeline=4 parallel.micro_batches=2", "2 micro-batches leave stages idle; expected at least 4"),
        ("parallel.data=2 parallel.pipeline=2 parallel.micro_batches=4", "cannot be divided over 2 × 4 micro-batches"),
    ],
)
def test_said_before_any_process_starts(tmp_path, monkeypatch, capsys, settings, message):
    monkeypatch.setattr("pet.launching.launcher.launch", lambda *_, **__: pytest.fail("processes were started"))
    words, _, rest = settings.partition("adapter=")
    overrides = [*words.split(), *([f"adapter={rest}"] if rest else [])]
    line = ["glm_lora", "eval.metrics=[loss]", f"output.dir={tmp_path / 'run'}", *overrides]
    for command in ("validate", "finetune"):
        assert main([command, *line]) == 2
        error = capsys.readouterr().err
        assert message in error, error
    assert not (tmp_path / "run").exists()


def test_the_product_must_be_that_of_the_job(tmp_path, monkeypatch, capsys):
    for name, value in (("RANK_ID", "0"), ("RANK_SIZE", "3")):
        monkeypatch.setenv(name, value)

    def alone(limit):
        raise InputError("nobody joined")

    monkeypatch.setattr("pet.parallel.join.join", alone)
    assert main(["finetune", "glm_lora", "parallel.data=2", f"output.dir={tmp_path / 'run'}"]) == 2
    assert "2 × 1 × 1 = 2, but 3 processes were started" in capsys.readouterr().err
    monkeypatch.setenv("RANK_SIZE", "1")
    assert main(["finetune", "glm_lora", "parallel.data=2", f"output.dir={tmp_path / 'run'}"]) == 2
    assert "= 2, but the environment says a job of 1 workers" in capsys.readouterr().err


TOO_SMALL = "experts.0.down_proj: its blocks of 32 would be cut into pieces of 2 by a division into columns"


@pytest.mark.parametrize(
    ("base", "asked", "layout", "message"),
    [
        ("qwen3_moe", True, ["parallel.tensor=2"], TOO_SMALL),
        ("qwen3_moe", False, ["parallel.tensor=2"], TOO_SMALL),
        ("llama_gqa", False, ["parallel.data=2", "parallel.shard_base=true"], "q_proj is packed in 8 or 4 bits, which"),
    ],
)
def test_packed_matrices_that_cannot_be_divided(tmp_path, fixtures, base, asked, layout, message):
    """Said by shapes, whoever packs: the recipe, or the files of the base."""
    path, packed = fixtures / base, ["model.quantization.type=nf4", "model.quantization.block=32"]
    if not asked:
        quantize_checkpoint(path, tmp_path / "packed", Quantization("nf4", 32))
        path, packed = tmp_path / "packed", []
    words = [f"model.path={path}", "model.tokenizer=llama_tiny", *packed, "eval.metrics=[loss]"]
    words += ["adapter.targets=[q_proj]", "generation.max_new_tokens=8"]
    check_fits(load(find_recipe("glm_lora"), [*words, "parallel.pipeline=2", "parallel.micro_batches=2"]))
    with pytest.raises(InputError, match=message):
        check_fits(load(find_recipe("glm_lora"), [*words, *layout]))


@pytest.mark.parametrize("method", ["prefix", "ptuning2"])
def test_the_text_that_a_prefix_starts_from_changes_no_layout(method):
    recipe = load(
        find_recipe("glm_lora"),
        ["parallel.tensor=2", "eval.metrics=[loss]", f"adapter={{method: {method}, init_text: Answer briefly}}"],
    )
    check_fits(recipe)


def test_what_is_whole_within_a_sublayer_has_a_term_of_its_gradient_on_each_member(monkeypatch):
    """A norm of each head: every member computes with its own heads."""
    layer = LlamaConfig.layer
    monkeypatch.setattr(LlamaConfig, "layer", lambda self: {**layer(self), "self_attn.q_norm": self.norm(8)})
    specs = ShardSpecs(LlamaConfig(), 2)
    assert specs.of_base("model.layers.3.self_attn.q_norm", "weight") == (PARTIAL, None)
    assert specs.of_base("model.layers.3.input_layernorm", "weight") == (WHOLE, None)
    assert specs.of_base("model.layers.3.self_attn.q_proj", "weight") == (SPLIT, Division(0, (4096,), 2))
    assert specs.of_base("model.layers.3.self_attn.o_proj", "weight") == (SPLIT, Division(1, (4096,), 2))


def test_a_factor_is_divided_as_the_numbers_that_it_multiplies():
    """Those of a feed-forward's second product are of its input, those of keys and values of the output."""
    config = config_of(PRESETS["llama3_8b"])
    parts = {
        share.name.rpartition(".layers.3.")[2]: share for share in shares(MetaModel(config), IA3Config(), 2).shares
    }
    for path, part in (("self_attn.k_proj", (512, 1)), ("mlp.down_proj", (1, 7168))):
        share = parts[f"{path}.ia3_l"]
        assert share.trained and (share.part, share.role) == (part, SPLIT)


def test_each_of_the_projections_in_a_fused_matrix_is_divided():
    """So that a member has whole heads of the queries, and of the keys and values, and both halves of the gate."""
    specs = ShardSpecs(config_of(PRESETS["glm2_6b"]), 2)
    layer = "transformer.encoder.layers.3"
    qkv = specs.of_base(f"{layer}.self_attention.query_key_value", "weight")
    assert qkv == (SPLIT, Division(0, (32 * 128, 2 * 128, 2 * 128), 2))
    gate = specs.of_base(f"{layer}.mlp.dense_h_to_4h", "weight")
    assert gate == (SPLIT, Division(0, (13696, 13696), 2))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("adapted", [{}, {"layers": [0, 1, 2]}, {"modules_to_save": ["lm_head", "down_proj"]}, None])
def test_plans_and_files_have_the_stages_that_models_are_cut_into(tied, adapted):
    """A tied head weighs on the last stage as the embedding does on the first."""
    config = {"model_type": "llama", "vocab_size": 512, "hidden_size": 16, "intermediate_size": 24}
    config |= {"num_hidden_layers": 8, "num_attention_heads": 2, "tie_word_embeddings": tied}
    lora = adapted if adapted is None else {"rank": 2, "targets": ["q_proj", "up_proj"], **adapted}
    for stages in (2, 3):
        model = AutoModel.from_config(config)
        if lora:
            pet.apply_lora(model, **lora)
        planned = shares(MetaModel(config), LoRAConfig(**lora) if lora else None, pipeline=stages).layers
        assert list(planned) == cut_stage(model, Mesh(1, 1, stages, 0))
    assert len(planned[1]) > max(len(planned[0]), len(planned[2])), "an end weighs as much as three layers"


def test_a_base_of_which_nothing_is_frozen_is_not_shared():
    """An option that reaches nothing: here every matrix of the layers is trained whole."""
    model = pet.AutoModel.from_pretrained("llama_tiny")
    pet.apply_lora(model, rank=2, targets=["lm_head"], modules_to_save=["self_attn", "mlp"])
    with pytest.raises(InputError, match="no matrix of the layers is frozen"):
        shard_base(model, None, loaded=True)


def test_rows_that_replicas_cannot_share_evenly_are_refused_by_the_model_too():
    """None is left out where a script divides a model without a recipe."""
    model = pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=2)
    with pytest.raises(InputError, match="cannot be divided evenly over 5 replicas"):
        shard_base(model, Group("data", "", tuple(range(5)), 0), loaded=True)
