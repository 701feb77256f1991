"""Prompts that job files name: what is written, and what is learnt of it."""

from __future__ import annotations

import json
import re

import pytest
from written_prompts import HEAD, IM, IM_SYSTEM, LLAMA3, said, written

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.compat import axolotl
from pet.compat.prompts import AXOLOTL, LLAMA_FACTORY
from pet.data.encode import Encoder
from pet.data.formats import read_rows
from pet.data.preferences import labelled, pairs
from pet.data.prompt import OPENAI
from pet.data.settings import DataSettings

# what LLaMA-Factory's own templates write: a first turn, a later one, and a first one with the system text S; in
# brackets what is learnt, ^ and $ are the tokenizer's tokens that begin and end a text; | an end that is not written
BELOW = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
ASSISTANT = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
)
ASSISTANT += "and polite answers to the user's questions."
QWEN = IM_SYSTEM.format("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
GEMMA = "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
WRITTEN = {
    "default": ("Human: A$\nAssistant:[B$\n]", "Human: C$\nAssistant:[D$\n]", "System: S$\n{}"),
    "empty": ("A[B]", "C[D]", "S{}"),
    "alpaca": (
        BELOW + "### Instruction:\nA\n\n### Response:\n[B$\n\n]",
        "### Instruction:\nC\n\n### Response:\n[D$\n\n]",
        "S### Instruction:\nA\n\n### Response:\n[B$\n\n]",
    ),
    "vicuna": (ASSISTANT + "USER: A ASSISTANT:[B$]", "USER: C ASSISTANT:[D$]", "SUSER: A ASSISTANT:[B$]"),
    "zephyr": (
        "<|system|>\nYou are Zephyr, a helpful assistant.$<|user|>\nA$<|assistant|>\n[B$]",
        "<|user|>\nC$<|assistant|>\n[D$]",
        "<|system|>\nS$<|user|>\nA$<|assistant|>\n[B$]",
    ),
    "deepseek": ("^User: A\n\nAssistant:[B$]", "User: C\n\nAssistant:[D$]", "^S\n\nUser: A\n\nAssistant:[B$]"),
    "llama2": ("^[INST] A [/INST][B$]", "^[INST] C [/INST][D$]", "^[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST][B$]"),
    "llama3": (
        "^" + LLAMA3.format("A") + "[B<|eot_id|>]",
        LLAMA3.format("C") + "[D<|eot_id|>]",
        "^" + HEAD.format("system") + "S<|eot_id|>" + LLAMA3.format("A") + "[B<|eot_id|>]",
    ),
    "mistral": ("^[INST] A[/INST][ B$]", "[INST] C[/INST][ D$]", "^[INST] S\n\nA[/INST][ B$]"),
    "ministral": ("^[INST]A[/INST][B$]", "[INST]C[/INST][D$]", "^[INST]S\n\nA[/INST][B$]"),
    "mistral_small": (
        "^[INST]A[/INST][B$]",
        "[INST]C[/INST][D$]",
        "^[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]A[/INST][B$]",
    ),
    "yi": (IM.format("A") + "[B<|im_end|>\n]", IM.format("C") + "[D<|im_end|>\n]", IM_SYSTEM.format("S") + "{}"),
    "qwen": (
        QWEN + IM.format("A") + "[B<|im_end|>\n]",
        IM.format("C") + "[D<|im_end|>\n]",
        IM_SYSTEM.format("S") + IM.format("A") + "[B<|im_end|>\n]",
    ),
    "qwen3": (
        IM.format("A") + "[<think>\n\n</think>\n\nB<|im_end|>\n]",
        IM.format("C") + "[<think>\n\n</think>\n\nD<|im_end|>\n]",
        IM_SYSTEM.format("S") + "{}",
    ),
    "gemma3": (
        "^" + GEMMA.format("A") + "[B<end_of_turn>\n]",
        GEMMA.format("C") + "[D<end_of_turn>\n]",
        "^" + GEMMA.format("S\n\nA") + "[B<end_of_turn>\n]",
    ),
    "gemma2": (
        "^" + GEMMA.format("A") + "[B<end_of_turn>\n]",
        "|" + GEMMA.format("C") + "[D<end_of_turn>\n$]",
        "^" + GEMMA.format("S\n\nA") + "[B<end_of_turn>\n$]",
    ),
    "glm4": (
        "[gMASK]<sop><|user|>\nA<|assistant|>[\nB]",
        "|<|user|>\nC<|assistant|>[\nD$]",
        "[gMASK]<sop><|system|>\nS<|user|>\nA<|assistant|>[\nB$]",
    ),
    "breeze": ("^[INST] A [/INST] [B]", "|[INST] C [/INST] [D$]", "^S[INST] A [/INST] [B$]"),
    "openchat": (
        "^GPT4 Correct User: A$GPT4 Correct Assistant:[B$]",
        "GPT4 Correct User: C$GPT4 Correct Assistant:[D$]",
        "^SGPT4 Correct User: A$GPT4 Correct Assistant:[B$]",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_prompts_of_llama_factory(encoder, name):
    first, later, own = (re.sub(r"[$^]", "<|endoftext|>", text) for text in WRITTEN[name])
    made = encoder(LLAMA_FACTORY[name])
    assert written(made, said("ABCD")) == first + later
    assert written(made, said("SAB")) == own.format(first)
    asked = made.tokenizer.decode(made.tokenizer.prompt(said("A")), skip_special_tokens=False)
    assert asked == first.rpartition("[")[0]


def test_an_end_is_learnt_of_the_answer_that_it_ends(encoder):
    """Of an answer without weight it is not, whatever stands before and behind."""
    turns = [f"<|user|>\n{asked}<|assistant|>{{}}\n{answer}{{}}" for asked, answer in ("AB", "CD", "AB")]
    for weights, marks in (
        ((1, 0, 1), ("[", "]|", "", "", "[", "<|endoftext|>]")),
        ((0, 1, 1), ("", "", "[", "]|", "[", "<|endoftext|>]")),
        ((1, 1, 0), ("[", "]|", "[", "]|", "", "<|endoftext|>")),
    ):
        talk = said("ABCDAB")
        for message, weight in zip(talk[1::2], weights, strict=True):
            message["weight"] = weight
        expected = "[gMASK]<sop>" + "".join(turns).format(*marks)
        assert written(encoder(LLAMA_FACTORY["glm4"]), talk) == expected


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("llama2", ["<s>", "[INST] A [/INST]", "B", "</s>", "<s>", "[INST] C [/INST]", "D", "</s>"]),
        ("mistral", ["<s>", "[INST] A[/INST]", "B", "</s>", "[INST] C[/INST]", "D", "</s>"]),
        ("vicuna", [ASSISTANT, "USER: A ASSISTANT:", "B", "</s>", "USER: C ASSISTANT:", "D", "</s>"]),
        (
            "default",
            ["Human: A", "</s>", "\nAssistant:", "B", "</s>", "\n"]
            + ["Human: C", "</s>", "\nAssistant:", "D", "</s>", "\n"],
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_text_of_llama_factorys_is_read_by_itself(fixtures, name, texts):
    """So that an answer begins with the space that LLaMA's tokenizer puts before a text."""
    tokenizer = Encoder(
        AutoTokenizer.from_pretrained(fixtures / "tok_llama"), DataSettings(template=LLAMA_FACTORY[name].jinja())
    ).tokenizer
    control = {"<s>": [tokenizer.bos_token_id], "</s>": [tokenizer.eos_token_id]}
    expected = [control.get(text) or tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert tokenizer.example(said("ABCD"))[0] == [number for ids in expected for number in ids]


def test_thoughts_in_llama_factorys_qwen3(encoder):
    thought, empty, qwen3 = "<think>\nx\n</think>\n\n", "<think>\n\n</think>\n\n", LLAMA_FACTORY["qwen3"]
    opening, end = IM.format("A"), "<|im_end|>\n]"
    for says, thinking, learnt in (
        (thought + "B", True, f"[{thought}B"),
        (thought + "B", None, f"[{thought}B"),
        (thought + "B", False, f"{empty}[B"),
        ("<think>y</think>B", False, "[<think>y</think>B"),  # no thought as the template writes it
        ("B", None, f"{empty}[B"),
    ):
        talk = [said("A")[0], {"role": "assistant", "content": says}]
        made = encoder(qwen3, thinking=thinking)
        assert written(made, talk) == opening + learnt + end
        asked = made.tokenizer.decode(made.tokenizer.prompt(said("A")), skip_special_tokens=False)
        assert asked == opening + empty * (not thinking)
    talk = [*said("A"), {"role": "assistant", "content": thought + "B"}, *said("CD")]
    expected = opening + "[B" + end + IM.format("C") + "[" + empty + "D" + end
    assert written(encoder(qwen3, last_thought=True), talk) == expected
    kept = opening + f"[{thought}B" + end
    asked, last = IM.format("C"), {"role": "assistant", "content": thought + "D"}
    assert written(encoder(qwen3, as_said=True), talk) == kept + asked + f"[{empty}D" + end
    assert written(encoder(qwen3, as_said=True), said("ABCD")).startswith(opening + "[B" + end + asked)
    assert written(encoder(qwen3, as_said=True, thinking=False), [*talk[:3], last]) == kept + asked + f"{empty}[D" + end


def test_system_texts_of_llama_factorys_openai_data(encoder):
    made = encoder(LLAMA_FACTORY["yi"], openai=True)
    for own, expected in (
        (None, OPENAI),
        ("S", f"S\n{OPENAI}"),
        ("detailed thinking on", "detailed thinking on"),
    ):
        talk = [{"role": "system", "content": own}] * bool(own) + said("AB")
        assert written(made, talk).startswith(IM_SYSTEM.format(expected) + IM.format("A"))


PAIR = {"chosen": " B.", "rejected": "N"}
MESSAGES = {"chosen": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B."}]}
MESSAGES["rejected"] = [MESSAGES["chosen"][0], {"role": "assistant", "content": "N"}]
OWN = {"prompt_format": "{system}Q {prompt} ", "chosen_format": "{chosen}!", "rejected_format": "{rejected}!"}


@pytest.mark.parametrize(
    ("given", "entry", "row", "expected"),
    [
        # what axolotl's transforms and TRL's trainers make of them; $ is the tokenizer's end token
        ("dpo", "chatml.intel", {"system": "S", "question": "A", "input": "x"} | PAIR, "SYSTEMIM[ B.<|im_end|>$]"),
        ("dpo", "chatml.icr", {"instruction": "x", "input": "A"} | PAIR, "IM[ B.<|im_end|>$]"),
        ("dpo", "chatml", {"input": "A", "question": "x"} | PAIR, "IM[ B.<|im_end|>$]"),
        (
            "dpo",
            "chatml.default",
            {"instruction": "A", "chosen_response": " B.", "rejected_response": "N"},
            "IM[ B.<|im_end|>$]",
        ),
        ("ipo", "chatml.argilla_chat", {"system": "x"} | MESSAGES, "IM[B.<|im_end|>$]"),
        ("simpo", "llama3.ultra", {"prompt": "A"} | MESSAGES, "$HEAD[B.<|eot_id|>$]"),  # with what begins a text
        ("kto", "llama3.argilla", {"instruction": "A", "completion": " B.", "label": True}, "HEAD[ B.<|eot_id|>$]"),
        ("orpo", "chat_template.argilla", {"system": "S"} | MESSAGES, "$SYSTEMIM[B.<|im_end|>\n$]"),
        ("dpo", "chat_template", {"messages": MESSAGES["chosen"][:1]} | PAIR, "IM[ B.<|im_end|>$]"),
        ("dpo", OWN, {"prompt": "A", "system": "S ", "input": "x"} | PAIR, "S Q A[  B.!$]"),
        ("kto", {"completion_format": "{completion}$"}, {"prompt": "A", "completion": "B", "label": False}, "A[B$]"),
        ("dpo", None, {"prompt": "A"} | PAIR, "A[ B.$]"),
        ("dpo", "passthrough", {"prompt": MESSAGES["chosen"][:1]} | PAIR, "IM[ B.<|im_end|>\n]"),
        ("dpo", OWN | {"chosen_format": "{chosen}?"}, None, "chosen_format and rejected_format: both answers"),
        ("dpo", "zephyr.nectar", None, "'zephyr.nectar' is not supported; known: chatml.default, chatml.argilla_chat"),
    ],
)
def test_answers_that_axolotl_compares(fixtures, tmp_path, given, entry, row, expected):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]).replace("$", "<|endoftext|>"))
    file = {"adapter": "lora", "rl": given, "chat_template": "chatml", "datasets": [{"path": str(path), "type": entry}]}
    t = axolotl.translate(json.loads(json.dumps(file).replace("$", "<|endoftext|>")), tmp_path / "job.yaml")
    if row is None:
        assert any(expected in text for text in (*t.problems, *(text for _, text in t.missing)))
        return
    assert not t.problems and not t.missing
    how = {"conversations": labelled} if given == "kto" else {"conversations": pairs, "documents": 2}
    (read,) = read_rows(path, columns=t.get("data.columns"), **how)
    template, tokenizer = t.get("data.template"), AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    found = written(Encoder(tokenizer, DataSettings(template=template)), read.messages)
    expected = expected.replace("SYSTEM", IM_SYSTEM.format("S")).replace("IM", IM.format("A"))
    assert found == expected.replace("HEAD", LLAMA3.format("A")).replace("$", "<|endoftext|>")
    own = AutoTokenizer.from_pretrained(fixtures / "tok_llama")  # which begins a text with a token
    first = Encoder(own, DataSettings(template=template)).tokenizer.example(read.messages)[0][:2]
    assert (first[0] == own.bos_token_id) == (entry != "passthrough") and first[1] != own.bos_token_id


def test_what_axolotl_compares_begins_with_the_space_that_a_tokenizer_puts_before_a_text_alone(tmp_path):
    """Metaspace with the scheme ``first``, as LLaMA's and Mistral's tokenizers of today have it."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "▁b"]
    words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    merges = [["▁", "a"], ["▁", "b"]]
    model = {"type": "BPE", "vocab": {piece: number for number, piece in enumerate(pieces)}, "merges": merges}
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    control = [{"id": number, "content": pieces[number], **flags} for number in range(3)]
    opening = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    single = [opening, {"Sequence": {"id": "A", "type_id": 0}}]
    before = {"type": "TemplateProcessing", "single": single, "pair": single}
    before["special_tokens"] = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    whole = {"version": "1.0", "added_tokens": control, "normalizer": None, "pre_tokenizer": words, "model": model}
    whole |= {"post_processor": before, "decoder": words, "truncation": None, "padding": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    for rl in ("dpo", "simpo"):
        file = {"adapter": "lora", "rl": rl, "datasets": [{"path": str(tmp_path / "tokenizer.json"), "type": None}]}
        template = axolotl.translate(file, tmp_path / "job.yaml").get("data.template")
        tokenizer = Encoder(AutoTokenizer.from_pretrained(tmp_path), DataSettings(template=template)).tokenizer
        ids, _ = tokenizer.example([{"role": "user", "content": "a"}, {"role": "assistant", "content": " b"}])
        assert [pieces[number] for number in ids] == ["<s>", "▁a", "▁b", "</s>"]


def test_a_token_that_the_base_lacks_is_an_error(fixtures):
    """LLaMA-Factory would add it to the tokenizer; as text it would be several tokens, and end no answer."""
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    for name in ("qwen", "llama3", "gemma2", "glm4"):
        with pytest.raises(InputError, match=r"data.template: the chat template needs the tokens <.*, which the token"):
            Encoder(tokenizer, DataSettings(template=LLAMA_FACTORY[name].jinja()))
    Encoder(tokenizer, DataSettings(template=LLAMA_FACTORY["mistral"].jinja()))  # whose tokens are text there, too


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", IM.format(" A ") + "[B<|im_end|>]\n"),
        ("qwen_25", QWEN + IM.format(" A ") + "[B<|im_end|>]\n"),
        ("llama3", "^" + LLAMA3.format("A") + "[B<|eot_id|>]"),
        ("gemma3", "^" + GEMMA.format("A") + "[B<end_of_turn>]\n"),
        ("qwen3", IM.format(" A ") + "<think>\n\n</think>\n\n[B<|im_end|>]\n"),
    ],
)
def test_prompts_of_axolotl(encoder, name, expected):
    messages = [{"role": "user", "content": " A "}, {"role": "assistant", "content": "B"}]
    assert written(encoder(AXOLOTL[name]), messages) == expected.replace("^", "<|endoftext|>")
    end = AXOLOTL[name].end  # which is not this tokenizer's
    unlearnt = expected.replace("^", "<|endoftext|>").replace(end + "]", "]" + end)
    assert written(encoder(AXOLOTL[name], ends=f"eos_token == '{end}'"), messages) == unlearnt


@pytest.mark.parametrize("within", [False, True])
def test_the_last_answers_thought_alone_is_written_by_axolotls_qwen3(encoder, within):
    """As axolotl 0.19 has it: a thought is learnt behind its beginning, and an empty one is not."""
    talk = said("ABCD")
    for answer in talk[1::2]:
        thought, word = f"Hm {answer['content']}.", answer["content"]
        answer |= {"content": f"<think>\n{thought}\n</think>\n\n{word}"} if within else {"reasoning_content": thought}
    first = IM.format("A") + "[B<|im_end|>]\n" + IM.format("C")
    found = written(encoder(AXOLOTL["qwen3"]), talk)
    assert found == first + "<think>\n[Hm D.\n</think>\n\nD<|im_end|>]\n"
    talk[-1] = {"role": "assistant", "content": "D"}
    assert written(encoder(AXOLOTL["qwen3"]), talk) == first + "<think>\n\n</think>\n\n[D<|im_end|>]\n"
    asked = encoder(AXOLOTL["qwen3"]).tokenizer
    for given, end in (({}, "assistant\n"), ({"enable_thinking": False}, "<think>\n\n</think>\n\n")):
        assert asked.decode(asked.prompt(said("A"), **given), skip_special_tokens=False).endswith(end)


@pytest.mark.parametrize(("name", "expected"), [("chatml", " S "), ("llama3", "S"), ("gemma3", " S ")])
def test_blanks_around_a_system_text_of_axolotl(encoder, name, expected):
    talk = [{"role": "system", "content": " S "}, *said("AB")]
    assert re.search(r" ?S ?(?=\n\nA|<\|)", written(encoder(AXOLOTL[name]), talk))[0] == expected
