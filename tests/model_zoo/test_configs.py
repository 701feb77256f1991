"""What may stand in a config.json: one line for each value that may not, before anything is built of it."""

import copy
import json

import pytest

from model_zoo import field_types
from model_zoo.configs import MAY_BE_0
from model_zoo.counting import sizes
from model_zoo.errors import InputError
from model_zoo.families import PRESETS as ALL_PRESETS, config_class
from model_zoo.rope_config import rope_settings, with_changes

PRESETS = ("gpt2", "llama3_8b", "glm_6b", "glm2_6b", "glm4_9b")
WRONG = {
    int: ("7", True, 2.5, 0, -1, [], {}, 10**9),
    float: ("x", True, 0, -1.0, float("nan"), float("inf"), [], {}, 10**400),
    bool: ("yes", 1, 0, [], {}),
    str: (1, True, [], {}),
    dict: (5, True, "linear", []),
}


def wrong_values():
    """Of every family and every field."""
    for name in PRESETS:
        values = ALL_PRESETS[name]
        fields = config_class(values)().to_dict()
        for key in ("rope_scaling", "rope_parameters"):
            if key in fields:
                fields[key] = {}
        for key, value in fields.items():
            if key.endswith("token_id") or key == "model_type" or value is None:
                continue
            for wrong in WRONG[type(value)]:
                if wrong != 0 or key not in MAY_BE_0:
                    yield name, key, wrong


@pytest.mark.parametrize("of_model", (True, False), ids=("a model", "sizes alone"))
def test_a_value_of_the_wrong_type_is_one_line(of_model):
    for name, key, wrong in wrong_values():
        values = {**ALL_PRESETS[name], key: wrong}
        read = config_class(ALL_PRESETS[name]).from_dict if of_model else sizes
        with pytest.raises(InputError) as caught:
            read(values)
        message = str(caught.value)
        assert key in message and "\n" not in message and len(message) < 300, message


def test_the_types_of_fields_are_worked_out_once(monkeypatch):
    """It took as long as all else that a file is checked for, each time."""
    found = []
    hints = field_types.get_type_hints
    monkeypatch.setattr(field_types, "get_type_hints", lambda kind: found.append(kind) or hints(kind))
    for name in PRESETS * 2:
        sizes(ALL_PRESETS[name])
    assert len(found) == len(set(found))


@pytest.mark.parametrize("kind", (None, 3, "lama", [], {"a": 1}, "x" * 100_000))
def test_an_unknown_model_type_is_one_short_line(kind):
    with pytest.raises(InputError, match=r"config.json: model_type is .*; supported: gpt2, llama") as caught:
        config_class({"model_type": kind})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    (
        ("gpt2", {"n_head": 7}, "n_embd 768 is no multiple of n_head 7"),
        ("glm_6b", {"num_attention_heads": 3}, "hidden_size 4096 over num_attention_heads 3"),
        ("glm_6b", {"pre_seq_len": 8}, "pre_seq_len is set: load the base without it"),
        ("glm2_6b", {"multi_query_group_num": 3}, "32 attention heads are no multiple of 3 key heads"),
        ("glm2_6b", {"pre_seq_len": 8}, "pre_seq_len is set: load the base without it"),
    ),
)
def test_sizes_that_make_no_heads_and_prefixes_within_a_base(model, changes, message):
    values = {**ALL_PRESETS[model], **changes}
    with pytest.raises(InputError, match=f"config.json: {message}"):
        config_class(values).from_dict(values)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
OF_0_OR_NULL = (
    ("llama3_8b", {"rms_norm_eps": 0.0, "initializer_range": 0, "sliding_window": 0}, {}),
    ("gpt2", {"layer_norm_epsilon": 0, "initializer_range": 0.0, "sliding_window": 0}, {}),
    ("qwen2_5_7b", {"sliding_window": 0, "use_sliding_window": False}, {}),
    ("qwen2_5_7b", {"rope_parameters": {"rope_theta": 5e4, "partial_rotary_factor": None}}, {"rope_theta": 5e4}),
    ("llama3_8b", {"rope_scaling": {**YARN, "beta_fast": 0, "beta_slow": 0}}, YARN),
    ("llama3_8b", {"rope_scaling": {**YARN, "factor": None}, "max_position_embeddings": 32768}, YARN),
)


@pytest.mark.parametrize(("model", "changes", "rotary"), OF_0_OR_NULL)
def test_0_and_null_where_transformers_computes_by_them(model, changes, rotary):
    config = config_class(ALL_PRESETS[model]).from_dict({**ALL_PRESETS[model], **changes})
    assert not any(config.windows)
    assert not rotary or rotary.items() <= rope_settings(config).items()


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"sliding_window": 0}, "sliding_window is 0, so that layers"),
        ({"is_causal": None}, "is_causal is None; supported: True"),
    ),
)
def test_0_and_null_by_which_transformers_sees_nothing_or_all(changes, message):
    values = {**ALL_PRESETS["mistral_7b"], **changes}
    with pytest.raises(InputError, match=f"config.json: {message}"):
        config_class(values).from_dict(values)


@pytest.mark.parametrize(
    ("said", "share"), (({}, 0.5), ({"partial_rotary_factor": None}, 1.0), ({"partial_rotary_factor": 0.25}, 0.25))
)
def test_a_null_share_of_a_head_is_all_of_it_for_glm(said, share):
    values = {"model_type": "glm4", **said}
    assert rope_settings(config_class(values).from_dict(values))["partial_rotary_factor"] == share
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    if said.get("partial_rotary_factor") is None:
        assert rope_settings(config_class(values).from_dict(values))["partial_rotary_factor"] == 0.75


ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE["original_max_position_embeddings"] = 8192


@pytest.mark.parametrize("key", ROPE)
@pytest.mark.parametrize("wrong", (True, "x", [], {}, -1, float("nan")))
def test_rotary_settings(key, wrong):
    values = {**ALL_PRESETS["llama3_8b"], "rope_scaling": {**ROPE, key: wrong}}
    with pytest.raises(InputError, match=f"config.json: rotary.* {key}"):
        config_class(values).from_dict(values)


DEFAULT = {"rope_type": "default", "rope_theta": 5e4}
LINEAR = {"rope_type": "linear", "factor": 2.0}
BY_KIND = {"full_attention": DEFAULT, "sliding_attention": DEFAULT}
MISLEADING = {
    "both forms": ("llama3_8b", {"rope_parameters": DEFAULT, "rope_scaling": ROPE}, "rope_parameters and rope_scaling"),
    "by kinds of layers": ("qwen3_8b", {"rope_parameters": BY_KIND}, "rope_parameters .* one for all layers"),
    "for all kinds": ("gemma3_1b", {"rope_parameters": DEFAULT}, "rope_parameters .* one object for each of full_att"),
    "half of a head": ("llama3_8b", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; llama rotates"),
    "within": ("qwen2_5_7b", {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "another part within": (
        "glm",
        {"partial_rotary_factor": 0.5, "rope_parameters": {**LINEAR, "partial_rotary_factor": 1.0}},
        "partial_rotary_factor is 1.0 in rope_parameters, but 0.5 beside",
    ),
    "an odd part": ("glm", {"head_dim": 12, "partial_rotary_factor": 0.75}, "is 0.75, so that 9 of head_dim 12 would"),
    "the older name of a type": (
        "gemma3_1b",
        {"rope_scaling": {"type": "linear", "factor": 8.0}},
        "rope_scaling has type 'linear'.* rope_type was expected",
    ),
}


@pytest.mark.parametrize("name", MISLEADING)
def test_rotary_settings_that_transformers_would_not_follow(name):
    """It computes such models without a word by other frequencies than the file seems to say."""
    model, changes, message = MISLEADING[name]
    values = {**ALL_PRESETS.get(model, {"model_type": model}), **changes}
    with pytest.raises(InputError, match=message):
        config_class(values).from_dict(values)
    same = {**ALL_PRESETS["llama3_8b"], "rope_parameters": ROPE, "rope_scaling": ROPE}
    assert config_class(same).from_dict(same).rope_parameters == ROPE


def test_positions_are_bounded_where_none_follow():
    """By a table of them, or by rotations that transformers changes as it goes beyond the context."""
    for model, kind in (("gpt2", None), ("llama3_8b", "dynamic"), ("llama3_8b", "linear"), ("glm2_6b", None)):
        scaling = {"rope_scaling": {"rope_type": kind, "factor": 2.0}} if kind else {}
        config = config_class(ALL_PRESETS[model]).from_dict({**ALL_PRESETS[model], **scaling})
        assert config.bounded_positions == (model == "gpt2" or kind == "dynamic")


def test_the_first_context_beside_the_rotary_settings_counts():
    """transformers reads it there first, as Phi-3's files have it; of settings for each kind of layer it does not."""
    values = {**ALL_PRESETS["llama3_8b"], "rope_scaling": ROPE, "original_max_position_embeddings": 16}
    assert rope_settings(config_class(values).from_dict(values))["original_max_position_embeddings"] == 16
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False}
    by_kind = {"full_attention": yarn, "sliding_attention": DEFAULT}
    values = {**ALL_PRESETS["gemma3_1b"], "rope_parameters": by_kind, "original_max_position_embeddings": 16}
    read = rope_settings(config_class(values).from_dict(values))
    assert read["original_max_position_embeddings"] == 32 and "truncate" not in read


@pytest.mark.parametrize(
    "values",
    (
        {"model_type": "glm", "partial_rotary_factor": 0.25, "rope_parameters": LINEAR},
        {"model_type": "llama", "rope_theta": 5e5, "rope_parameters": LINEAR},
        {"model_type": "gemma3_text", "rope_local_base_freq": 5e3, "rope_parameters": {"full_attention": LINEAR}},
    ),
    ids=lambda values: values["model_type"],
)
def test_what_stands_beside_the_rotary_settings_is_written_again(values):
    config = config_class(values).from_dict(values)
    written = config.for_file(config.to_dict())
    assert written.items() >= values.items()
    again = config_class(written).from_dict(written)
    assert [rope_settings(again, local) for local in (False, True)] == [
        rope_settings(config, local) for local in (False, True)
    ]


OF_VERSION_5 = (
    ({"model_type": "llama", "rope_parameters": DEFAULT}, {"rope_theta": 5e4}),
    (
        {"model_type": "llama", "rope_parameters": {**LINEAR, "rope_theta": 5e4}},
        {"rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    (
        {"model_type": "llama", "rope_parameters": {**ROPE, "rope_theta": 5e4, "attention_factor": None}},
        {"rope_theta": 5e4, "rope_scaling": ROPE},
    ),
    (
        {"model_type": "glm", "rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.25}},
        {"rope_theta": 5e4, "partial_rotary_factor": 0.25},
    ),
    (
        {"model_type": "gemma3_text", "rope_parameters": {**BY_KIND, "full_attention": {**LINEAR, "rope_theta": 1e5}}},
        {"rope_theta": 1e5, "rope_local_base_freq": 5e4, "rope_scaling": LINEAR},
    ),
    ({"model_type": "qwen3_moe", "num_local_experts": 16}, {"num_experts": 16}),
)


@pytest.mark.parametrize(("values", "older"), OF_VERSION_5)
def test_what_transformers_5_says_in_a_form_of_its_own_is_written_in_the_older_one_too(values, older):
    """Its earlier versions read no other, and compute something else without a word."""
    kind = config_class(values)
    config = kind.from_dict(values)
    for written in (kind.for_file(values), config.for_file(config.to_dict())):
        assert written.items() >= {**values, **older}.items()
        assert written.get("rope_scaling") == older.get("rope_scaling")
        for read in (written, {key: value for key, value in written.items() if key in older or key not in values}):
            again = kind.from_dict({**read, "model_type": values["model_type"]})
            assert again.shapes() == config.shapes()
            assert [_rotations(again, local) for local in (False, True)] == [
                _rotations(config, local) for local in (False, True)
            ]


def _rotations(config, local):
    return {key: value for key, value in rope_settings(config, local).items() if value is not None}


def test_the_older_form_within_a_model_of_more_than_text():
    text = {"rope_parameters": {**BY_KIND, "full_attention": {**LINEAR, "rope_theta": 1e5}}}
    values = {"model_type": "gemma3", "text_config": text}
    written = config_class(values).for_file(values)["text_config"]
    assert written == {**text, "rope_theta": 1e5, "rope_local_base_freq": 5e4, "rope_scaling": LINEAR}


def test_rotations_that_the_older_form_cannot_say():
    values = {"model_type": "gemma3_text", "rope_parameters": {"full_attention": DEFAULT, "sliding_attention": LINEAR}}
    assert config_class(values).for_file(values).keys() == {*values, "architectures"}
    with pytest.raises(InputError, match="rope_theta counts for nothing beside its rope_parameters"):
        with_changes(values, {"rope_theta": 1e5})


@pytest.mark.parametrize("both", (False, True))
@pytest.mark.parametrize(
    ("changes", "expected"),
    (
        ({"rope_theta": 1e5}, {"rope_theta": 1e5, **LINEAR}),
        ({"rope_scaling": None}, DEFAULT),
        ({"rope_scaling": ROPE}, {"rope_theta": 5e4, **ROPE}),
        ({"rope_parameters": {**ROPE, "rope_theta": 1e5}}, {"rope_theta": 1e5, **ROPE}),
    ),
)
def test_a_change_of_the_rotations_counts_before_the_file(both, changes, expected):
    values = {"model_type": "llama", "rope_parameters": {**LINEAR, "rope_theta": 5e4}}
    kind = config_class(values)
    changed = with_changes(kind.for_file(values) if both else values, changes)
    assert rope_settings(kind.from_dict(changed)).items() >= expected.items()


@pytest.mark.parametrize("form", ("rope_parameters", "rope_scaling"))
def test_the_part_of_a_head_within_the_rotary_settings_alone(form):
    """As transformers 5 writes it; transformers 5.12 reads it there only where it stands beside them, too."""
    values = {"model_type": "glm4", form: {**LINEAR, "partial_rotary_factor": 1.0}}
    config = config_class(values).from_dict(values)
    assert rope_settings(config)["partial_rotary_factor"] == 1
    written = config.for_file(config.to_dict())
    assert written["partial_rotary_factor"] == written[form]["partial_rotary_factor"] == 1


@pytest.mark.parametrize("kind", ("mistral", "ministral"))
def test_layers_of_ministral(kind):
    """transformers opens a `mistral` that lists its layers as a `ministral`."""
    values = {"model_type": kind, "num_hidden_layers": 3, "sliding_window": 7}
    assert config_class(values).from_dict(values).windows == (7, 7, 7)
    values["layer_types"] = ["full_attention", "sliding_attention", "full_attention"]
    assert config_class(values).from_dict(values).windows == (0, 7, 0)


@pytest.mark.parametrize("beside", (None, 5e3))
def test_a_base_beside_those_of_each_kind_of_layer(beside):
    """transformers writes a null there where all layers of a Gemma 3 are of one kind."""
    by_kind = {"full_attention": {**DEFAULT, "rope_theta": 1e6}, "sliding_attention": DEFAULT}
    values = {**ALL_PRESETS["gemma3_1b"], "rope_parameters": {**by_kind, "rope_type": "default", "rope_theta": beside}}
    config = config_class(values).from_dict(values)
    written = config.for_file(config.to_dict())
    assert written["rope_parameters"] == values["rope_parameters"]
    assert (written["rope_theta"], written["rope_local_base_freq"]) == (1e6, 5e4)
    again = config_class(written).from_dict(written)
    assert [rope_settings(again, local)["rope_theta"] for local in (False, True)] == [1e6, 5e4]


@pytest.mark.parametrize("key", ("rope_theta", "partial_rotary_factor"))
def test_rotary_settings_without_what_all_need(key):
    values = {"model_type": "glm", "rope_parameters": {**DEFAULT, key: None}}
    with pytest.raises(InputError, match=f"rope_type 'default' needs {key}"):
        config_class(values).from_dict(values)


@pytest.mark.parametrize("kind", ("qwen2", "mistral"))
def test_biases_that_are_llamas_alone(kind):
    plain, said = ({"model_type": kind, **flags} for flags in ({}, {"attention_bias": True, "mlp_bias": True}))
    assert config_class(said).from_dict(said).shapes() == config_class(plain).from_dict(plain).shapes()


@pytest.mark.parametrize("kind", ("llama", "qwen2", "glm"))
def test_as_many_key_heads_as_others(kind):
    """A null says so. Files made of this one say it too: left out, transformers would take the published model's."""
    values = {"model_type": kind, "num_attention_heads": 4, "num_key_value_heads": None}
    read, written = config_class(values).from_dict(values), config_class(values).for_file(values)
    assert written["num_key_value_heads"] == 4 == read.dims.kv_heads
    silent = {"model_type": kind, "num_attention_heads": 4}
    assert "num_key_value_heads" not in config_class(silent).for_file(silent)


def test_sizes_of_gpt2_under_the_names_of_other_families():
    """transformers takes them, and before GPT-2's own: 12 heads would compute something else from the same tensors."""
    values = {"model_type": "gpt2", "n_embd": 24, "n_layer": 3, "num_attention_heads": 2, "num_hidden_layers": 2}
    values |= {"vocab_size": 9, "max_position_embeddings": 32}
    dims = sizes(values)
    assert (dims.layers, dims.hidden, dims.heads, dims.context) == (2, 24, 2, 32)
    assert config_class(values).from_dict(values).dims == dims


def test_rotary_frequencies_in_order():
    values = {**ALL_PRESETS["llama3_8b"], "rope_scaling": {**ROPE, "high_freq_factor": 1.0}}
    with pytest.raises(InputError, match="high_freq_factor must be above low_freq_factor"):
        config_class(values).from_dict(values)


@pytest.mark.parametrize("name", PRESETS)
def test_what_transformers_heeds_in_every_family_is_refused(name):
    """It masks nothing where a config.json says so, and gives single layers other fields."""
    values = ALL_PRESETS[name]
    with pytest.raises(InputError, match=r"config\.json: is_causal is False; supported: True"):
        config_class(values).from_dict({**values, "is_causal": False})
    with pytest.raises(InputError, match=r"config\.json: per_layer_config is .*; fields are those of all layers"):
        config_class(values).from_dict({**values, "per_layer_config": {"0": {"sliding_window": 8}}})
    off = {"is_causal": True, "per_layer_config": {}}
    assert config_class(values).from_dict({**values, **off}).dims.layers > 0


def test_every_problem_is_listed_at_once():
    values = {**ALL_PRESETS["llama_7b"], "head_dim": True, "rms_norm_eps": "small", "eos_token_id": "</s>"}
    with pytest.raises(InputError) as caught:
        config_class(values).from_dict(values)
    assert [key in str(caught.value) for key in ("head_dim", "rms_norm_eps", "eos_token_id")] == [True] * 3


def test_what_published_files_say_is_taken(fixtures):
    for path in sorted(fixtures.glob("*/config*.json")):
        values = json.loads(path.read_text())
        if "model_type" in values:
            assert config_class(values).from_dict(copy.deepcopy(values)).dims.layers > 0
